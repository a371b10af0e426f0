//! The report in a browser: that every chart is drawn, and nothing is asked of the network.

use cairn_bench::evaluate::{Standing, lines};
use cairn_bench::machine::Machine;
use cairn_bench::plan;
use cairn_bench::report::{self, browser};
use cairn_bench::result::{
    Allocator, CONTROL, CaseResult, Cell, FORMAT, Form, LabResult, STORED, SUBJECT,
};
use cairn_workloads::case::{Case, Curve, Fixed, Group, Plot, Row, Table};
use programs::process::Failure;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// Numbers from a seed, the same in every run.
struct Numbers(u64);

impl Numbers {
    /// At least 0, below 1.
    fn next(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn allocator(name: &str, linked: bool) -> Allocator {
    Allocator {
        name: name.into(),
        version: "1.2.3".into(),
        source: "crate example-sys 0.1.2".into(),
        flags: "-O3 -DNDEBUG -fvisibility=hidden <escaped>".into(),
        about: "An allocator that exists in this test only.".into(),
        no_preload: None,
        no_engine: (!linked).then(|| "a shared library only".into()),
    }
}

/// A result of these cases under these allocators, with plausible numbers.
fn made_up(cases: Vec<(Case, Form)>, names: &[&str]) -> LabResult {
    let mut numbers = Numbers(7);
    let allocators: Vec<Allocator> =
        names.iter().enumerate().map(|(i, name)| allocator(name, i % 5 != 4)).collect();
    let skill: Vec<f64> = names.iter().map(|_| 1.0 + 0.8 * numbers.next()).collect();
    let cases = cases.into_iter().map(|(case, form)| {
        let scale: BTreeMap<&str, f64> =
            case.rows.iter().map(|row| (&*row.key, 10_f64.powf(4.0 * numbers.next()))).collect();
        let mut cells = BTreeMap::new();
        for (allocator, skill) in allocators.iter().zip(&skill) {
            if form == Form::Linked && allocator.no_engine.is_some() {
                continue;
            }
            let skill = if allocator.name == SUBJECT { 0.95 } else { *skill };
            cells.insert(allocator.name.clone(), cell(&case, &scale, skill, &mut numbers));
        }
        let again = cells.get(SUBJECT).cloned();
        cells.extend(again.map(|cell| (CONTROL.to_owned(), nearly(&cell, &mut numbers))));
        CaseResult { case, form, cells }
    });
    LabResult {
        format: FORMAT,
        command: "cairn-bench --full".into(),
        date: "2026-01-31".into(),
        machine: Machine::read(),
        quick: false,
        rounds: 5,
        cases: cases.collect(),
        allocators,
    }
}

fn cell(case: &Case, scale: &BTreeMap<&str, f64>, skill: f64, numbers: &mut Numbers) -> Cell {
    let mut cell = Cell::default();
    match numbers.next() {
        ..0.01 => cell.failures.push(Failure::Timeout { seconds: 60.0, mib: 9000.0 }),
        0.01..0.03 => cell.failures.push(Failure::Crash {
            status: "signal 11".into(),
            message: "<script>alert('not escaped')</script>".into(),
        }),
        _ => {
            for row in case.rows.iter() {
                let own = scale[&*row.key] * skill * (0.9 + 0.5 * numbers.next().powi(3));
                let own = if numbers.next() < 0.04 { own * 9.0 } else { own };
                let values = (0..5).map(|_| own * (1.0 + 0.04 * numbers.next())).collect();
                cell.values.insert(row.key.to_string(), values);
            }
            for key in case.rows.iter().filter_map(|row| row.per) {
                cell.values.insert(key.to_string(), vec![64.0]);
            }
            for plot in case.plots.iter() {
                cell.curves.insert(plot.key.to_string(), curve(plot, skill, numbers));
            }
        }
    }
    cell
}

fn nearly(cell: &Cell, numbers: &mut Numbers) -> Cell {
    let mut again = cell.clone();
    let factor = 1.0 + 0.04 * numbers.next() * numbers.next();
    again.values.values_mut().flatten().for_each(|value| *value *= factor);
    again
}

fn curve(plot: &Plot, skill: f64, numbers: &mut Numbers) -> Curve {
    match &*plot.key {
        "scaling" => [1.0, 2.0, 4.0, 8.0]
            .map(|n: f64| [n, 40.0 * n.powf(0.9) / skill / (1.0 + 0.05 * n * numbers.next())])
            .to_vec(),
        "malloc" | "free" => (0..35)
            .map(|n| 1.5_f64.powi(n))
            .map(|x| [x, 12.0 * skill * x.powf(0.45 + 0.1 * skill) * (1.0 + 0.2 * numbers.next())])
            .collect(),
        _ => {
            let (length, jitter) = (2.0 * skill, numbers.next());
            let at = |n: u32| {
                let x = f64::from(n) / 100.0;
                let wave = (x * 12.0 + jitter).sin().abs();
                [x * length, 20.0 + 300.0 * skill * x.sqrt() * (0.6 + 0.4 * wave)]
            };
            (0..=100).map(at).collect()
        }
    }
}

/// A few cases with everything that a report can show.
fn small() -> LabResult {
    const OWN: Plot = Plot::linear("queue", "seconds", "blocks waiting");
    const PLOTS: Fixed<[Plot]> =
        Fixed(&[Plot::RSS, Plot::SCALING, Plot::MALLOC_LATENCY, Plot::FREE_LATENCY, OWN]);
    const ROWS: &[Row] = &[
        Row::time("ms"),
        Row::PEAK,
        Row::new(" worst", Table::Latency, "worst", "ns"),
        Row::new("", Table::Counts, "faults", "faults"),
    ];
    let names = ["first", "second", "third", "fourth"];
    let groups = [Group::Single, Group::Threads, Group::Footprint, Group::Programs];
    let mut cases = Vec::new();
    for (name, group) in names.into_iter().zip(groups) {
        let mut case = Case::new(name, group, "What it does & what that <stands> for.", ROWS);
        case.plots = if group == Group::Threads { PLOTS } else { Fixed(&[]) };
        case.origin = Fixed("a paper, 1995");
        cases.extend([(case, Form::Preloaded), (case, Form::Linked)]);
    }
    let mut result = made_up(cases, &[SUBJECT, "glibc", "other", "other-secure", "third"]);
    let failures = [
        ("glibc", Failure::Timeout { seconds: 1e6, mib: 1e6 }),
        ("other", Failure::Crash { status: "signal 6".into(), message: "</script>".into() }),
        (SUBJECT, Failure::wrong("not as it should be")),
    ];
    for ((name, failure), case) in failures.into_iter().zip(&mut result.cases) {
        let failed = Cell { failures: vec![failure], ..Cell::default() };
        case.cells.insert(name.into(), failed);
    }
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

/// The text of the attribute that begins at `at`.
fn attribute<'a>(html: &'a str, name: &str) -> Option<&'a str> {
    html.split_once(&format!("{name}=\""))?.1.split('"').next()
}

#[test]
fn every_chart_is_drawn_from_one_file() {
    if no_browser() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.html");
    report::write(&small(), &path).unwrap();
    let html = browser::dump(&path).unwrap();
    assert_eq!(attribute(&html, "data-error"), None);

    let mut seen = 0;
    for chart in html.split("data-chart=\"").skip(1) {
        let name = chart.split('"').next().unwrap();
        let (svg, _) = chart.split_once("</svg>").unwrap_or_else(|| panic!("no svg in {name}"));
        assert!(!svg.contains("</figure>"), "no svg in {name}");
        let shapes = svg.matches("<path").count() + svg.matches("<rect").count();
        assert!(shapes > 3 && svg.contains("<text"), "only {shapes} shapes in {name}");
        seen += 1;
    }
    // Eight cases of four rows; five kinds of curves for two cases; means, heat maps and more.
    assert!(seen > 32 + 10 + 4 + 16, "only {seen} charts");
    assert_eq!(attribute(&html, "data-charts"), Some(&*seen.to_string()));
    for kind in ["rss", "scaling", "malloc", "free", "queue"] {
        assert!(html.contains(&format!("data-chart=\"{kind}-second\"")), "no {kind} curves");
    }
}

#[test]
fn the_page_names_every_row_not_won_and_asks_for_nothing() {
    let result = small();
    let page = report::page(&result).unwrap();
    let (summary, _) = page.split_once("<section id=\"overview\">").unwrap();
    for line in lines(&result) {
        let named = summary.contains(&format!(">{}</a>", line.label));
        let open = line.standing() != Standing::Wins;
        assert!(named || !open, "{} is not in the summary", line.label);
    }
    for external in ["src=\"http", "href=\"http", "src=\"//", "href=\"//", "url(", "@import"] {
        let (text, _) = page.split_once("<script type=\"application/json\"").unwrap();
        assert!(!text.contains(external), "{external}");
    }
    assert!(!page.contains("<script src") && !page.contains("<link"));
    assert!(!page.contains("<script>alert"), "a message is not escaped");
}

#[test]
fn charts_become_pictures() {
    if no_browser() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let written = report::pictures(&small(), folder.path()).unwrap();
    let names: Vec<&str> = written.iter().filter_map(|path| path.file_stem()?.to_str()).collect();
    for name in
        ["time-memory", "means-time", "means-memory", "groups", "rss-second", "malloc-second"]
    {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    for path in &written {
        let svg = std::fs::read_to_string(path).unwrap();
        let tree = roxmltree::Document::parse(&svg);
        let tree = tree.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let filled =
            |fill: &str| tree.descendants().any(|node| node.attribute("fill") == Some(fill));
        assert!(filled("#ffffff"), "{} has no background", path.display());
    }
}

/// The result that the project's pages are made from.
fn stored() -> LabResult {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    LabResult::read(&root.join(STORED)).unwrap()
}

#[test]
fn the_frontier_is_explained_where_it_is_first_named() {
    let page = report::page(&small()).unwrap();
    let (_, body) = page.split_once("<body>").unwrap();
    let at = body.to_lowercase().find("frontier").unwrap();
    let (_, sentence) = body[..at].rsplit_once("<p").unwrap();
    assert!(!sentence.contains("</p>"), "named outside of a sentence");
    assert!(sentence.contains(&format!("the best that any allocator but {SUBJECT} reaches")));
    assert!(body[..at].ends_with("is called the <em>"), "{sentence}");
}

#[test]
fn only_allocators_that_ran_are_counted() {
    let mut made = small();
    made.allocators.push(allocator("silent", true));
    let page = report::page(&made).unwrap();
    assert!(page.contains("beside 4 other allocators in"));
    assert!(page.contains("not counted: silent."));

    let stored = stored();
    let ran = |name: &str| {
        let cells = stored.cases.iter().filter_map(|case| case.cells.get(name));
        cells.into_iter().any(|cell| !cell.values.is_empty())
    };
    let others = stored.allocators.iter().filter(|a| a.name != SUBJECT && ran(&a.name)).count();
    assert!(others + 1 < stored.allocators.len(), "all ran: this result shows nothing");
    assert!(report::page(&stored).unwrap().contains(&format!("beside {others} other allocators")));
}

#[test]
fn long_tables_are_folded() {
    let page = report::page(&stored()).unwrap();
    let (mut before, mut long) = (String::new(), 0);
    for part in page.split_inclusive("</table>") {
        let rows = part.matches("<tr").count();
        before.push_str(part);
        let Some((above, _)) = before.rsplit_once("<table") else { continue };
        assert!(above.trim_end().ends_with("<div class=\"scroll\">"), "a table cannot be scrolled");
        if rows > 30 {
            let (_, details) = above.rsplit_once("<details").expect("a long table in the open");
            assert!(!details.contains("</details>"), "a long table in the open");
            let (tag, rest) = details.split_once('>').unwrap();
            assert!(!tag.contains(" open"), "not folded: {tag}");
            assert!(rest.trim_start().starts_with("<summary>"), "nothing says what is in it");
            long += 1;
        }
        before.clear();
    }
    assert!(long >= 2, "only {long} long tables");
    for charts in ["heat-time", "heat-memory", "bars-one-thread"] {
        let folded = format!("<details id=\"{charts}\" class=\"folded\">");
        assert!(page.contains(&folded), "{charts} stands in the open");
    }
}

#[test]
fn the_machine_stands_at_the_head() {
    let result = stored();
    let page = report::page(&result).unwrap();
    let (_, head) = page.split_once("<header>").unwrap();
    let (head, _) = head.split_once("</header>").unwrap();
    let processor = format!("{}, {} cores", result.machine.cpu, result.machine.cores);
    for fact in [processor, result.machine.kernel] {
        assert!(head.contains(&fact), "no {fact}");
    }
}

/// With everything unfolded and every chart drawn, nothing but tables and charts scrolls sideways.
#[test]
fn the_page_fits_a_narrow_window() {
    const MEASURE: &str = "<script>
        document.querySelectorAll('details').forEach((each) => (each.open = true));
        setInterval(() => {
          const root = document.documentElement;
          if (!root.dataset.charts || root.dataset.drawn !== root.dataset.charts) return;
          root.dataset.widths = `${innerWidth} ${root.scrollWidth - root.clientWidth}`;
          const wide = [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth);
          root.dataset.scrolled = wide.length;
        }, 100);
    </script></body>";
    if no_browser() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.html");
    let page = report::page(&small()).unwrap();
    // The scripts may have the word, too: the last one is the page's.
    let (page, end) = page.rsplit_once("</body>").unwrap();
    std::fs::write(&path, format!("{page}{MEASURE}{end}")).unwrap();
    let html = browser::dump_at_width(&path, 500).unwrap();
    assert_eq!(attribute(&html, "data-widths"), Some("500 0"), "not 500 wide, or more beside it");
    let scrolled: usize = attribute(&html, "data-scrolled").unwrap().parse().unwrap();
    assert!(scrolled > 0, "nothing was too wide: this shows nothing");
}

/// For looking at a page of full size: `LARGE=FILE.json cargo test -p lab --test report
/// -- --ignored`, then `cairn-bench report FILE.json`.
#[test]
#[ignore = "writes a file to look at"]
fn large() {
    let names = [
        SUBJECT,
        "glibc",
        "mimalloc",
        "mimalloc-secure",
        "mimalloc2",
        "snmalloc",
        "snmalloc-checked",
        "jemalloc",
        "rpmalloc",
        "hardened",
        "tcmalloc",
        "scudo",
        "mesh",
        "dlmalloc",
        "gperftools",
        "tbb",
        "jemalloc-deb",
        "mimalloc-deb",
    ];
    let cases = plan::all().into_iter().map(|entry| (*entry.case(), entry.form));
    let path = std::env::var_os("LARGE").expect("LARGE=FILE.json");
    made_up(cases.collect(), &names).write(Path::new(&path)).unwrap();
}
