//! The report of the stored result: that it has every row and figure, that every chart is drawn, and
//! that nothing is asked of the network.

use cairn_bench::evaluate::{Entry, lines};
use cairn_bench::report::{self, browser};
use cairn_bench::result::{Allocator, LabResult, STORED, SUBJECT};
use cairn_bench::table::{ratio, show};
use programs::process::Failure;
use std::io::Write;
use std::path::Path;

/// The result that the project's pages are made from; here one more allocator took part and failed.
fn result() -> LabResult {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut result = LabResult::read(&root.join(STORED)).unwrap();
    let silent = Allocator { name: "silent".into(), ..result.allocators[1].clone() };
    result.allocators.push(silent);
    let message = "<script>alert('not escaped')</script>".to_owned();
    let crash = Failure::Crash { status: "signal 11".into(), message };
    let mut cell = result.cases[0].cells[SUBJECT].clone();
    cell.values.clear();
    cell.failures.push(crash);
    result.cases[0].cells.insert("silent".into(), cell);
    result
}

/// Whether to go on without a browser. A panic if `CAIRN_TEST_ALL` demands one.
fn no_browser() -> bool {
    let missing = browser::find().is_none();
    if missing {
        let why = "no browser; install the package `chromium`";
        assert!(std::env::var_os("CAIRN_TEST_ALL").is_none(), "CAIRN_TEST_ALL is set, but {why}");
        let name = std::thread::current().name().unwrap_or("a test").to_owned();
        // Not `eprintln!`, which the harness keeps to itself if the test passes.
        let _ = std::io::stderr().write_all(format!("skipped {name}: {why}\n").as_bytes());
    }
    missing
}

/// What stands between two marks.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    Some(text.split_once(start)?.1.split_once(end)?.0)
}

#[test]
fn the_page_has_every_row_and_figure() {
    let result = result();
    let page = report::page(&result).unwrap();
    let lines = lines(&result);
    assert!(lines.len() > 250, "only {} rows", lines.len());
    for line in &lines {
        // A case has rows of the same name in several tables.
        let head = format!("<th>{}</th><td>", line.label);
        let mut rows = page.split(&head).skip(1);
        let has_all = |row: &str| {
            let cells = row.split("</tr>").next().unwrap().split("<td").skip(4);
            let cells: Vec<&str> = cells.filter_map(|cell| Some(cell.split_once('>')?.1)).collect();
            cells == line.entries.iter().map(cell).collect::<Vec<_>>()
        };
        assert!(rows.any(has_all), "{} is not in the page", line.label);
    }
    let embedded = between(&page, "id=\"result\">", "</script>").unwrap();
    let embedded: LabResult = serde_json::from_str(embedded).unwrap();
    let text = |result: &LabResult| serde_json::to_string(result).unwrap();
    assert_eq!(text(&embedded), text(&result), "the result itself is in the page");
}

fn cell(entry: &Entry) -> String {
    let median = match entry {
        Entry::Value { median, .. } => ratio(*median),
        _ => String::new(),
    };
    format!("{}<small>{median}</small></td>", show(entry))
}

#[test]
fn the_page_asks_for_nothing_and_explains_itself() {
    let result = result();
    let page = report::page(&result).unwrap();
    let (text, _) = page.split_once("<script type=\"application/json\"").unwrap();
    for external in ["src=\"", "href=\"http", "href=\"//", "url(", "@import", "<link"] {
        assert!(!text.contains(external), "{external}");
    }
    assert!(!page.contains("<script>alert"), "a message is not escaped");
    for fact in [format!("{}, {} cores", result.machine.cpu, result.machine.cores), result.date] {
        assert!(between(&page, "<header>", "</header>").unwrap().contains(&fact), "no {fact}");
    }
    let body = between(&page, "<body>", "</body>").unwrap();
    let first = body.to_lowercase().find("frontier").unwrap();
    assert!(
        body[..first].ends_with(&format!("any allocator but {SUBJECT} reaches is called the <em>"))
    );
    // One of the stored result did not run, and "silent" neither.
    let counted = format!("beside {} other allocators", result.allocators.len() - 3);
    assert!(page.contains(&counted) && page.contains(", silent."), "{counted}");
}

#[test]
fn every_chart_is_drawn_and_becomes_a_picture() {
    if no_browser() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let written = report::pictures(&result(), folder.path()).unwrap();
    let plots: usize = result().cases.iter().map(|case| case.case.plots.len()).sum();
    assert_eq!(written.len(), 1 + plots);
    for path in &written {
        let svg = std::fs::read_to_string(path).unwrap();
        let tree = roxmltree::Document::parse(&svg);
        let tree = tree.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let shapes = tree.descendants().filter(|node| node.has_tag_name("path")).count();
        assert!(shapes > 20 && svg.contains(SUBJECT), "{shapes} shapes in {}", path.display());
        let filled = tree.descendants().any(|node| node.attribute("fill") == Some("#ffffff"));
        assert!(filled, "{} has no background", path.display());
    }
}

/// With everything unfolded and every chart drawn, nothing but tables scrolls sideways.
#[test]
fn the_page_fits_a_narrow_window() {
    const MEASURE: &str = "<script>
        document.querySelectorAll('details').forEach((each) => (each.open = true));
        setInterval(() => {
          const root = document.documentElement;
          if (Number(root.dataset.drawn) < document.querySelectorAll('[data-chart]').length) return;
          root.dataset.widths = `${innerWidth} ${root.scrollWidth - root.clientWidth}`;
        }, 100);
    </script></body>";
    if no_browser() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.html");
    let page = report::page(&result()).unwrap();
    // The scripts may have the word, too: the last one is the page's.
    let (page, end) = page.rsplit_once("</body>").unwrap();
    std::fs::write(&path, format!("{page}{MEASURE}{end}")).unwrap();
    let html = browser::dump(&path, 500).unwrap();
    let (_, root) = html.split_once("<html").unwrap();
    let (root, _) = root.split_once('>').unwrap();
    assert!(!root.contains("data-error"), "{root}");
    assert_eq!(between(root, "data-widths=\"", "\""), Some("500 0"), "{root}");
}
