//! redis-server: generated data, a mixed load beside it, lazy frees, save and restart.

use super::generate::Numbers;
use super::install::Need;
use super::process::Server;
use super::stage::Stage;
use super::{Evidence, Program};
use anyhow::{Context, Result, ensure};
use std::time::Duration;

pub(super) const REDIS: Program = Program {
    name: "redis",
    quick: true,
    needs: &[
        Need::new("redis-server", "redis-server"),
        Need::new("redis-cli", "redis-tools"),
        Need::new("redis-benchmark", "redis-tools"),
    ],
    version: &["redis-server", "--version"],
    what: "load data, redis-benchmark beside it, flush in the background, save, restart; \
           digests of all keys",
    loaded_in: &["redis-server", "redis-benchmark"],
    prepare,
    run,
};

/// What the load does; each of these keeps or drops data of another shape.
const LOAD: &str = "set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,lrange_100,mset";

fn prepare(stage: &Stage) -> Result<()> {
    let mut numbers = Numbers::new(1);
    let mut commands = String::new();
    for _ in 0..stage.pick(60_000, 400_000) {
        let key = numbers.below(5_000);
        let command = match numbers.below(9) {
            0 => {
                let words = 1 + numbers.below(60);
                format!("SET text:{key} \"{}\"", numbers.words(words))
            }
            1 => format!("HSET hash:{key} {} {}", numbers.word(), numbers.below(1_000_000)),
            2 => format!("ZADD sorted:{} {} {}", key % 50, numbers.below(1_000), numbers.word()),
            3 => format!("RPUSH list:{key} {} {}", numbers.word(), numbers.word()),
            4 => format!("SADD set:{} {}", key % 500, numbers.below(100_000)),
            5 => format!("APPEND text:{key} {}", numbers.word()),
            6 => format!("LPOP list:{}", numbers.below(5_000)),
            7 => format!("SETRANGE wide:{} {} {}", key % 100, numbers.below(40_000), key),
            _ => format!("DEL text:{}", numbers.below(5_000)),
        };
        commands.push_str(&command);
        commands.push('\n');
    }
    stage.write_input("commands", commands)
}

fn run(stage: &Stage) -> Result<Evidence> {
    let server = start(stage)?;
    let load = client(stage, "--pipe")?.stdin(stage.input.join("commands"))?.success()?;
    ensure!(load.text().contains("errors: 0"), "commands failed:\n{}", load.text());
    let loaded = ask(stage, "DEBUG DIGEST")?;
    let keys = ask(stage, "DBSIZE")?;
    let requests = stage.pick("30000", "300000");
    let load = stage
        .process("redis-benchmark")?
        .line("-s redis.sock --dbnum 1 -c 40 -P 8 -r 20000 -d 300 -q")
        .args(["-n", requests, "-t", LOAD])
        .success()?;
    ensure!(!load.text().contains("rror"), "the load failed:\n{}", load.text());
    ask(stage, "-n 1 FLUSHDB ASYNC")?;
    let after_load = ask(stage, "DEBUG DIGEST")?;
    ask(stage, "BGSAVE")?;
    stop(stage, server)?;

    let server = start(stage)?;
    let restarted = ask(stage, "DEBUG DIGEST")?;
    // Rebuilds every value inside the running server.
    ask(stage, "DEBUG RELOAD")?;
    let reloaded = ask(stage, "DEBUG DIGEST")?;
    stop(stage, server)?;
    for digest in [&after_load, &restarted, &reloaded] {
        ensure!(*digest == loaded, "the data changed from {loaded} to {digest}");
    }
    Ok(Evidence::summary(format!("{keys} keys, digest {}", &loaded[..8.min(loaded.len())]))
        .fact("keys", keys)
        .fact("digest", loaded))
}

fn start(stage: &Stage) -> Result<Server<'_>> {
    let mut server = stage
        .process("redis-server")?
        .line("--port 0 --unixsocket redis.sock --save --appendonly no --io-threads 2")
        .line("--enable-debug-command yes --lazyfree-lazy-user-del yes")
        .serve()?;
    stage.wait_until(Duration::from_secs(60), &mut server, || {
        ask(stage, "PING").is_ok_and(|answer| answer == "PONG")
    })?;
    Ok(server)
}

fn stop(stage: &Stage, mut server: Server<'_>) -> Result<()> {
    let _ = client(stage, "SHUTDOWN SAVE")?.run()?;
    let log = server.wait()?;
    let end = log.lines().last().context("the server logs its end")?;
    ensure!(end.contains("bye bye"), "the server ended otherwise: {end}");
    Ok(())
}

fn client<'a>(stage: &'a Stage, command: &str) -> Result<super::process::Process<'a>> {
    Ok(stage.process("redis-cli")?.line("-s redis.sock").line(command).limit(120))
}

fn ask(stage: &Stage, command: &str) -> Result<String> {
    Ok(client(stage, command)?.success()?.text().trim().to_owned())
}
