//! SQLite's shell on a database in memory.

use super::prepare::Numbers;
use super::task::Task;
use super::{Program, Subject, find};
use crate::child::Failure;
use cairn_workloads::case::{Case, Group, Results, Row};
use std::fmt::Write as _;

/// The program.
pub const PROGRAMS: &[Program] = &[Program {
    case: Case::new(
        "sqlite",
        Group::Programs,
        "SQLite in memory: inserts, indices, updates, joins, sorting, text.",
        Row::MS_PEAK,
    )
    .quick(0.2),
    run,
}];

fn run(subject: &Subject<'_>) -> Result<Results, Failure> {
    let script = subject.prepared("script.sql", || script(subject.scaled(100_000)))?;
    let read = format!(".read {}", script.display());
    Task::new("sqlite", find("sqlite3", "sqlite3")?).line("-batch :memory:").arg(&read).run(subject)
}

const SCHEMA: &str = "CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, shelf INTEGER, \
     price REAL, note TEXT);\nCREATE TABLE shelf(id INTEGER PRIMARY KEY, label TEXT);\n";

const QUESTIONS: &str = "\
    CREATE INDEX item_name ON item(name);\n\
    CREATE INDEX item_shelf ON item(shelf, price);\n\
    UPDATE item SET note = note || ' ' || upper(name) WHERE id % 7 = 3;\n\
    SELECT count(*), sum(length(note)), round(sum(price), 2) FROM item;\n\
    SELECT s.label, count(*), group_concat(i.name, ' ') FROM item i JOIN shelf s \
        ON s.id = i.shelf WHERE s.id < 30 GROUP BY s.id ORDER BY s.label;\n\
    SELECT a.shelf, count(*) FROM item a JOIN item b ON a.shelf = b.shelf AND a.price = b.price \
        AND a.id < b.id GROUP BY a.shelf ORDER BY 2 DESC, 1 LIMIT 20;\n\
    SELECT id, rank() OVER (PARTITION BY shelf ORDER BY note, id) AS r FROM item \
        ORDER BY r DESC, id LIMIT 50;\n\
    SELECT sum(json_array_length(j, '$.parts')) FROM (SELECT \
        json_object('name', name, 'parts', json_array(shelf, price, note)) AS j FROM item);\n\
    DELETE FROM item WHERE id % 3 = 1;\n\
    SELECT count(DISTINCT name), max(note) FROM item;\n\
    PRAGMA integrity_check;\n";

/// Inserts of so many rows, and questions about them.
fn script(rows: usize) -> String {
    let mut numbers = Numbers::new(4);
    let mut text = format!("{SCHEMA}BEGIN;\n");
    for id in 0..200 {
        let _ = writeln!(text, "INSERT INTO shelf VALUES({id}, '{}');", numbers.words(3));
    }
    for _ in 0..rows {
        let (name, shelf, price) = (numbers.word(), numbers.below(200), numbers.below(100_000));
        let words = numbers.below(25);
        let note = numbers.words(words);
        let _ = writeln!(
            text,
            "INSERT INTO item(name, shelf, price, note) \
             VALUES('{name}', {shelf}, {price} / 100.0, '{note}');"
        );
    }
    text + "COMMIT;\n" + QUESTIONS
}
