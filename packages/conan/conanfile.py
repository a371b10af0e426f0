"""cairn for Conan, built from this clone by `conan export-pkg packages/conan`."""

import os

from conan import ConanFile
from conan.errors import ConanException, ConanInvalidConfiguration
from conan.tools.files import load


class Cairn(ConanFile):
    name = "cairn"
    license = "MIT OR Apache-2.0"
    description = "A general-purpose memory allocator"
    settings = "os", "arch"
    package_type = "shared-library"

    def _clone(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        lines = load(self, os.path.join(self._clone(), "Cargo.toml")).splitlines()
        self.version = next(line.split('"')[1] for line in lines if line.startswith("version = "))

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("cairn needs Linux")

    def source(self):
        raise ConanException("it is built in its clone: use `conan export-pkg` there")

    def package(self):
        self.run('cargo xtask install --prefix "{}"'.format(self.package_folder), cwd=self._clone())

    def package_info(self):
        # The package of CMake that is installed knows more targets than one made from the rest would.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/cairn"]
        self.cpp_info.libs = ["cairn"]
