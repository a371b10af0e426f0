//! sqlite3: a generated script of statements; its output, and the database as a dump.

use super::generate::{Numbers, fingerprint};
use super::install::Need;
use super::stage::Stage;
use super::{Evidence, Program};
use anyhow::{Result, ensure};
use std::fmt::Write as _;

pub(super) const SQLITE: Program = Program {
    name: "sqlite3",
    quick: true,
    needs: &[Need::new("sqlite3", "sqlite3")],
    version: &["sqlite3", "--version"],
    what: "a generated script (inserts, updates, joins, windows, JSON, full text), integrity \
           check, dump",
    loaded_in: &["sqlite3"],
    prepare,
    run,
};

const SCHEMA: &str = "PRAGMA journal_mode=WAL;\nPRAGMA synchronous=OFF;\n\
    CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, shelf INTEGER, price REAL, note TEXT);\n\
    CREATE INDEX item_name ON item(name);\nCREATE INDEX item_shelf ON item(shelf, price);\n\
    CREATE VIRTUAL TABLE page USING fts5(body);\n";

const QUESTIONS: [&str; 6] = [
    "SELECT count(*), sum(length(note)), round(sum(price), 2) FROM item;",
    "SELECT shelf, count(*), group_concat(name, ' ') FROM (SELECT * FROM item ORDER BY name, id) \
     WHERE shelf < 20 GROUP BY shelf ORDER BY shelf;",
    "SELECT a.shelf, count(*) FROM item a JOIN item b ON a.name = b.name AND a.id < b.id \
     GROUP BY a.shelf ORDER BY 2 DESC, 1 LIMIT 20;",
    "SELECT id, rank() OVER (PARTITION BY shelf ORDER BY price, id) AS r FROM item \
     ORDER BY r DESC, id LIMIT 50;",
    "SELECT json_extract(j, '$.name'), json_array_length(j, '$.parts') FROM (SELECT id, \
     json_object('name', name, 'parts', json_array(shelf, price, note)) AS j FROM item) \
     ORDER BY id LIMIT 200;",
    "SELECT count(*), min(rowid), max(rowid) FROM page WHERE page MATCH 'kalo OR term* OR sunra';",
];

fn prepare(stage: &Stage) -> Result<()> {
    let mut numbers = Numbers::new(2);
    let mut script = SCHEMA.to_owned();
    for round in 0..stage.pick(8, 50) {
        script.push_str("BEGIN;\n");
        for _ in 0..3_000 {
            let (name, shelf, price) = (numbers.word(), numbers.below(200), numbers.below(100_000));
            let words = numbers.below(25);
            let note = numbers.words(words);
            let _ = match numbers.below(10) {
                0 => writeln!(script, "DELETE FROM item WHERE id % 997 = {};", price % 997),
                1 => writeln!(
                    script,
                    "UPDATE item SET note = note || ' {note}' WHERE shelf = {shelf} AND id % 13 = 5;"
                ),
                2 => writeln!(script, "INSERT INTO page VALUES('{note} {name}');"),
                _ => writeln!(
                    script,
                    "INSERT INTO item(name, shelf, price, note) \
                     VALUES('{name}', {shelf}, {price} / 100.0, '{note}');"
                ),
            };
        }
        script.push_str("COMMIT;\n");
        script.push_str(QUESTIONS[round % QUESTIONS.len()]);
        script.push('\n');
    }
    script.push_str(&QUESTIONS.join("\n"));
    script.push_str("\nVACUUM;\nPRAGMA integrity_check;\n");
    stage.write_input("script.sql", script)
}

fn run(stage: &Stage) -> Result<Evidence> {
    let answers = stage
        .process("sqlite3")?
        .line("-batch data.db")
        .stdin(stage.input.join("script.sql"))?
        .success()?;
    let text = answers.text();
    let end = text.lines().last().unwrap_or_default();
    ensure!(end == "ok", "the database is damaged: {end}");
    let dump = stage.process("sqlite3")?.line("data.db .dump").success()?;
    let rows = dump.text().lines().count();
    Ok(Evidence::summary(format!("{} lines of answers, {rows} of dump", text.lines().count()))
        .fact("answers", fingerprint(&answers.stdout))
        .fact("stderr", answers.stderr)
        .fact("dump", fingerprint(&dump.stdout)))
}
