/*
 * A library that a program of life.c is linked with, and, compiled with LIFE_IS_PLUGIN, the one
 * that it loads at run time: the same places, one name or the other.
 */
#include "life.h"

#ifdef LIFE_IS_PLUGIN
#define CONSTRUCTOR "plugin_constructor"
#define DESTRUCTOR "plugin_destructor"
#else
#define CONSTRUCTOR "library_constructor"
#define DESTRUCTOR "library_destructor"
#endif

__attribute__((constructor)) static void constructor(void)
{
    if (is_place(CONSTRUCTOR)) first_of_all();
}

__attribute__((destructor)) static void destructor(void)
{
    if (!is_place(DESTRUCTOR)) return;
    first_of_all();
    work_out();
}

/* The first operation, from the plugin's own code. */
void plugin_first(void)
{
    first_of_all();
    work_out();
}

/* A block for the program to free when the plugin is gone. */
void *plugin_keep(void) { return operate(chosen_operation()); }
