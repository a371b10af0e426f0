# find_package(cairn) gives cairn::cairn, the shared library, and cairn::static; and the hardened
# build as cairn::hardened and cairn::hardened-static.

# A prefix may be found by a link to one of its folders.
get_filename_component(_cairn_here "${CMAKE_CURRENT_LIST_DIR}" REALPATH)

function(_cairn_library target kind file)
  get_filename_component(library "${_cairn_here}/../../${file}" ABSOLUTE)
  get_filename_component(include "${_cairn_here}/../@UP@/include" ABSOLUTE)
  foreach(part IN ITEMS "${library}" "${include}/cairn.h")
    if(NOT EXISTS "${part}")
      set(cairn_FOUND FALSE PARENT_SCOPE)
      set(cairn_NOT_FOUND_MESSAGE "this installation lacks ${part}; install cairn again" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  if(NOT TARGET cairn::${target})
    add_library(cairn::${target} ${kind} IMPORTED)
    set_target_properties(cairn::${target} PROPERTIES
      IMPORTED_LOCATION "${library}" INTERFACE_INCLUDE_DIRECTORIES "${include}")
  endif()
endfunction()

_cairn_library(cairn SHARED libcairn.so)
_cairn_library(static STATIC libcairn.a)
_cairn_library(hardened SHARED libcairn-hardened.so)
_cairn_library(hardened-static STATIC libcairn-hardened.a)
