/* A program that is linked with cairn has its operators new and delete: nothing need be defined. */
#ifndef MIMALLOC_NEW_DELETE_H
#define MIMALLOC_NEW_DELETE_H

#include <mimalloc.h>

#endif
