//! Compares the crates in the "knows" column of ARCHITECTURE.md with the dependencies that Cargo reports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

/// The crate that every other may use. The column need not name it.
const COMMON: &str = "model";

/// The crate that wires the others together; its cell says "all".
const BINARY: &str = "nodeyard";

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: String,
}

#[derive(Deserialize)]
struct Package {
    manifest_path: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    /// `None` for a normal dependency.
    kind: Option<String>,
    /// Set for crates of the workspace only.
    path: Option<String>,
}

/// A row of the table.
struct Row {
    line: usize,
    text: String,
    knows: String,
}

/// Returns how the column names the crate in `dir`: `crates/` is left out.
fn short_name(dir: &str) -> &str {
    dir.strip_prefix("crates/").unwrap_or(dir)
}

/// Returns the crates of the workspace by directory, each with the names of those it depends on.
fn dependencies(checkout: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(checkout)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata failed: {errors}");
    let metadata: Metadata = serde_json::from_slice(&output.stdout).unwrap();
    let dir = |path: &str| {
        let path = Path::new(path).strip_prefix(&metadata.workspace_root);
        path.unwrap().to_str().unwrap().to_owned()
    };
    let crates = metadata.packages.iter().map(|package| {
        let normal = package.dependencies.iter().filter(|d| d.kind.is_none());
        let paths = normal.filter_map(|dependency| dependency.path.as_deref());
        let names = paths.map(|path| short_name(&dir(path)).to_owned());
        let manifest = dir(&package.manifest_path);
        let own = manifest.strip_suffix("/Cargo.toml").unwrap().to_owned();
        (own, names.collect())
    });
    crates.collect()
}

/// Returns the rows of the table whose last column is "knows", by the directory in their first column.
fn table(page: &str) -> BTreeMap<String, Row> {
    let lines = page.lines().enumerate();
    let rows = lines
        .skip_while(|(_, line)| !line.ends_with("| knows |"))
        .skip(2)
        .take_while(|(_, line)| line.starts_with('|'));
    let rows = rows.map(|(index, line)| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [dir, .., knows] = cells.as_slice() else {
            panic!("line {} of ARCHITECTURE.md has one column", index + 1);
        };
        let row = Row {
            line: index + 1,
            text: line.to_owned(),
            knows: (*knows).to_owned(),
        };
        (dir.trim_matches('`').to_owned(), row)
    });
    rows.collect()
}

/// Returns what the last column should say.
fn cell(real: &BTreeSet<String>) -> String {
    let names = real.iter().map(String::as_str);
    let named: Vec<&str> = names.filter(|name| *name != COMMON).collect();
    match (named.is_empty(), real.is_empty()) {
        (false, _) => named.join(", "),
        (true, false) => COMMON.to_owned(),
        (true, true) => "nobody".to_owned(),
    }
}

/// Returns what is wrong with the row of the crate in `dir`.
fn check(dir: &str, row: Option<&Row>, real: &BTreeSet<String>) -> Vec<String> {
    let right = if short_name(dir) == BINARY {
        "all".to_owned()
    } else {
        cell(real)
    };
    let Some(Row { line, text, knows }) = row else {
        return vec![format!(
            "no row for `{dir}`: add one whose last column is \"{right}\""
        )];
    };
    if right == "all" {
        let flaw = format!("line {line}: `{dir}` knows \"{right}\": {text}");
        return Vec::from_iter((*knows != right).then_some(flaw));
    }
    let stated = knows.split(',').map(|name| name.trim().to_owned());
    let stated: BTreeSet<String> = stated.filter(|name| name != "nobody").collect();
    let extra = stated.difference(real).map(|name| {
        format!(
            "line {line}: `{dir}` does not depend on `{name}`: let its row say \"{right}\": {text}"
        )
    });
    let missing = real.difference(&stated).filter(|name| *name != COMMON);
    let missing = missing.map(|name| {
        format!(
            "line {line}: `{dir}` depends on `{name}`: remove that from {dir}/Cargo.toml, or let the row say \
             \"{right}\": {text}"
        )
    });
    extra.chain(missing).collect()
}

#[test]
fn crates_know_what_the_architecture_says() {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(checkout.join("ARCHITECTURE.md")).unwrap();
    let rows = table(&page);
    let crates = dependencies(&checkout);
    let mut flaws: Vec<String> = crates
        .iter()
        .flat_map(|(dir, real)| check(dir, rows.get(dir), real))
        .collect();
    for (dir, row) in &rows {
        if !checkout.join(dir).is_dir() {
            let line = row.line;
            flaws.push(format!("line {line}: no directory `{dir}`: {}", row.text));
        }
    }
    let flaws = flaws.join("\n");
    assert!(
        flaws.is_empty(),
        "ARCHITECTURE.md and the dependencies differ:\n{flaws}"
    );
}

#[test]
fn a_wrong_row_is_named_with_its_remedy() {
    let page = "| crate | what it is | knows |\n|---|---|---|\n| `crates/store` | records | model, plan |\n";
    let rows = table(page);
    let real = BTreeSet::from(["config", "model"].map(str::to_owned));
    let flaws = check("crates/store", rows.get("crates/store"), &real);
    let begins = [
        r#"line 3: `crates/store` does not depend on `plan`: let its row say "config":"#,
        "line 3: `crates/store` depends on `config`: remove that from crates/store/Cargo.toml,",
    ];
    assert_eq!(flaws.len(), begins.len());
    for (flaw, begin) in flaws.iter().zip(begins) {
        assert!(flaw.starts_with(begin), "{flaw}");
    }
    let flaws = check("crates/plan", rows.get("crates/plan"), &real);
    assert_eq!(
        flaws,
        [r#"no row for `crates/plan`: add one whose last column is "config""#]
    );
}
