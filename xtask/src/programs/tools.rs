//! Small tools of every system.

use super::generate::{Numbers, file_fingerprint, fingerprint, tree_fingerprint};
use super::install::Need;
use super::stage::Stage;
use super::{Evidence, Program};
use anyhow::{Result, ensure};
use std::fs;

pub(super) const SORT: Program = Program {
    name: "sort",
    quick: true,
    needs: &[Need::new("sort", "coreutils")],
    version: &["sort", "--version"],
    what: "lines sorted by 2 threads in memory, with temporary files, by number, unique",
    loaded_in: &["sort"],
    prepare: |stage| {
        stage.write_input("lines", Numbers::new(15).text(stage.pick(16 << 20, 120 << 20)))
    },
    run: |stage| {
        let mut evidence = Evidence::default();
        for options in ["--parallel=2", "-S 4M --batch-size=8", "-k2,2 -k1r", "-u -f --parallel=2"]
        {
            stage
                .process("sort")?
                .line(options)
                .arg(stage.input.join("lines"))
                .stdout(stage.work.join("sorted"))
                .success()?;
            evidence = evidence.fact(options, file_fingerprint(&stage.work.join("sorted"))?);
        }
        evidence.summary = format!("{} orders", evidence.facts.len());
        Ok(evidence)
    },
};

pub(super) const COMPRESS: Program = Program {
    name: "archivers",
    quick: true,
    needs: &[
        Need::new("tar", "tar"),
        Need::new("gzip", "gzip"),
        Need::new("xz", "xz-utils"),
        Need::new("bzip2", "bzip2"),
    ],
    version: &["tar", "--version"],
    what: "generated files by tar, gzip, xz, bzip2 and back; archives and trees",
    loaded_in: &["tar", "gzip", "xz", "bzip2"],
    prepare: |stage| {
        let mut numbers = Numbers::new(16);
        for file in 0..stage.pick(60, 200) {
            stage.write_input(&format!("text{file}"), numbers.text(1 << (10 + file % 10)))?;
            stage.write_input(&format!("noise{file}"), numbers.noise(1 << (8 + file % 10)))?;
        }
        Ok(())
    },
    run: compress,
};

pub(super) const OPENSSL: Program = Program {
    name: "openssl",
    quick: false,
    needs: &[Need::new("openssl", "openssl")],
    version: &["openssl", "version"],
    what: "digests, ciphers there and back, a self-signed certificate checked, speed in 2 processes",
    loaded_in: &["openssl"],
    prepare: |stage| stage.write_input("plain", Numbers::new(17).noise(stage.pick(4, 32) << 20)),
    run: openssl,
};

fn compress(stage: &Stage) -> Result<Evidence> {
    let original = tree_fingerprint(&stage.input)?;
    let mut evidence = Evidence::default();
    stage
        .process("tar")?
        .line("--sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf all.tar -C")
        .arg(&stage.input)
        .arg(".")
        .success()?;
    evidence = evidence.fact("tar", file_fingerprint(&stage.work.join("all.tar"))?);
    for (program, options, suffix) in
        [("gzip", "-n -7", "gz"), ("xz", "-T2 --block-size=4MiB -4", "xz"), ("bzip2", "-k", "bz2")]
    {
        let packed = stage.work.join(format!("all.tar.{suffix}"));
        stage.process(program)?.line(options).line("-c all.tar").stdout(&packed).success()?;
        let folder = format!("from-{program}");
        fs::create_dir(stage.work.join(&folder))?;
        stage.process("tar")?.line("-xf").arg(&packed).arg("-C").arg(&folder).success()?;
        let back = tree_fingerprint(&stage.work.join(folder))?;
        ensure!(back == original, "{program} gave back other files");
        evidence = evidence.fact(program, file_fingerprint(&packed)?);
    }
    evidence.summary = format!("{} archives, all unpack to the same", evidence.facts.len());
    Ok(evidence)
}

fn openssl(stage: &Stage) -> Result<Evidence> {
    let openssl = |line: &str| stage.process("openssl").map(|process| process.line(line));
    let plain = stage.input.join("plain");
    let mut evidence = Evidence::default();
    for digest in ["sha256", "sha3-512", "blake2b512"] {
        let answer = openssl("dgst -r")?.arg(format!("-{digest}")).stdin(&plain)?.success()?;
        evidence = evidence.fact(digest, answer.text());
    }
    for cipher in ["aes-256-cbc", "aes-128-ctr", "chacha20", "camellia-192-cbc"] {
        let both = format!("enc -{cipher} -pbkdf2 -nosalt -pass pass:cairn");
        openssl(&both)?.arg("-in").arg(&plain).line("-out secret").success()?;
        openssl(&both)?.line("-d -in secret -out back").success()?;
        let (back, secret) = (fs::read(stage.work.join("back"))?, stage.work.join("secret"));
        ensure!(fingerprint(&back) == file_fingerprint(&plain)?, "{cipher} does not come back");
        evidence = evidence.fact(cipher, file_fingerprint(&secret)?);
    }
    openssl("req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -days 30 -subj /CN=cairn")?
        .success()?;
    let verified = openssl("verify -CAfile cert cert")?.success()?.text();
    openssl("speed -seconds 1 -multi 2 -bytes 4096 sha256 ecdsap256")?.success()?;
    evidence.summary = format!("{} digests and ciphers, {}", evidence.facts.len(), verified.trim());
    Ok(evidence.fact("certificate", verified))
}
