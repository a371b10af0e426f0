//! Plugins that are opened with RTLD_DEEPBIND: they have the allocator of their host.

mod common;

use common::{Home, assert_succeeded, display, lacks, skipped, text};
use std::process::Command;

/// Gives blocks to its host and takes the host's.
const PLUGIN: &[u8] = b"
#include <stdlib.h>
#include <string.h>
char *gives(void) { return strdup(\"from the plugin\"); }
void takes(char *block) { free(block); }
void *resizes(void *block) { return realloc(block, 100000); }
";

/// Opens it by a name that only the RUNPATH of this library leads to.
const OPENER: &[u8] = b"
#define _GNU_SOURCE
#include <dlfcn.h>
void *opens(void) { return dlopen(\"libplugin.so\", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND); }
";

const HOST: &[u8] = b"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
void *opens(void);
int main(void)
{
    void *plugin = opens();
    if (!plugin) return puts(dlerror()), 1;
    char *(*gives)(void) = (char *(*)(void))dlsym(plugin, \"gives\");
    void (*takes)(char *) = (void (*)(char *))dlsym(plugin, \"takes\");
    void *(*resizes)(void *) = (void *(*)(void *))dlsym(plugin, \"resizes\");
    for (int i = 0; i < 1000; i++) {
        char *given = gives();
        if (i == 0) puts(given);
        free(given);
        takes(malloc(i * 100));
        free(resizes(malloc(i)));
    }
    return dlclose(plugin);
}
";

#[test]
fn a_plugin_that_binds_deeply_has_its_hosts_allocator() {
    let home = Home::new();
    let folder = home.path();
    std::fs::create_dir(folder.join("plugins")).unwrap();
    let build = |name: &str, source: &[u8], output: &str, flags: &[&str]| {
        let (source, output) = (home.file(name, 0o644, source), folder.join(output));
        let mut cc = Command::new("cc");
        cc.args(["-fno-builtin", "-w", "-o"]).arg(output).arg(source).args(flags);
        cc.status().is_ok_and(|status| status.success())
    };
    let shared = ["-shared", "-fPIC"];
    let runpath = "-Wl,--enable-new-dtags,-rpath,$ORIGIN/plugins";
    let own = format!("-Wl,-rpath,{}", display(&folder));
    let opener = folder.join("libopener.so");
    let is_built = build("plugin.c", PLUGIN, "plugins/libplugin.so", &shared)
        && build("opener.c", OPENER, "libopener.so", &[shared[0], shared[1], runpath])
        && build("host.c", HOST, "host", &[display(&opener), &own]);
    if !is_built {
        skipped("no C compiler");
        return;
    }
    let host = folder.join("host");
    for options in [&[][..], &["--hardened"], &["--no-inherit"]] {
        let output = home.run(&[options, &[display(&host)]].concat());
        assert_succeeded(&output);
        assert_eq!(text(&output.stdout), "from the plugin\n");
    }
    // Children keep neither library.
    let output = home.run(&["--no-inherit", "sh", "-c", "env | grep -c LD_PRELOAD"]);
    assert_eq!(text(&output.stdout), "0\n");
}

#[test]
fn php_runs() {
    if lacks("php", "php-cli") {
        return;
    }
    let home = Home::new();
    let script =
        "$a = []; for ($i = 0; $i < 10000; $i++) $a[] = str_repeat(\"x\", $i); echo count($a);";
    let output = home.run(&["php", "-r", script]);
    assert_succeeded(&output);
    assert_eq!(text(&output.stdout), "10000");
}
