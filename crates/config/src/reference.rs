//! Generates the reference page of all keys, in Markdown.

use std::collections::HashSet;
use std::fmt::Write;

use serde_json::Value as Json;

use crate::file::{MainFile, SecureFile};
use crate::provider::{DRIVERS, ProviderCommon, UNSERVED_DRIVERS, absent_drivers};
use crate::section::{DefaultValue, Describe, KeyInfo, Section, SectionInfo};

const HEAD: &str = "\
# nodepool.yaml

This page is made from the declarations the program reads the file with; a test compares the two.

Keys marked ● are not in Nodepool. A key without a value counts as absent. Times are in seconds. A list or
mapping whose default is \"none\" is empty by default. `%(NAME)` anywhere in the file is replaced by the environment
variable of that name, before the file is read as YAML, for names that start with `NODEPOOL_`.
";

/// Returns the reference of every key with its type, default and meaning.
pub fn reference() -> String {
    let mut page = ReferencePage {
        text: HEAD.to_owned(),
        seen: HashSet::new(),
        outer: Vec::new(),
    };
    page.section(
        "##",
        "The top of the file",
        "",
        MainFile::type_info().section.map(|describe| describe()),
    );

    page.line("\n## `providers[]`\n");
    page.line("A provider has the keys of this table and those of its driver. A provider whose name starts with `fake` always has the driver `fake`.\n");
    let names: Vec<String> = DRIVERS
        .iter()
        .map(|driver| format!("`{}`{}", driver.name, mark(driver.ours)))
        .collect();
    page.line("| key | type | default | meaning |\n|---|---|---|---|");
    page.line(&format!(
        "| `driver` | {} | `openstack` | Driver. {} |",
        names.join(", "),
        absent_drivers()
    ));
    let common = <ProviderCommon as Section<()>>::keys();
    for key in &common {
        page.row(key);
    }
    page.outer.extend(common.iter().map(|key| key.key));
    for driver in DRIVERS {
        let title = format!("`driver: {}`{}", driver.name, mark(driver.ours));
        let mut section = (driver.type_info)().section.map(|describe| describe());
        if UNSERVED_DRIVERS.contains(&driver.name)
            && let Some(section) = &mut section
        {
            section
                .doc
                .push_str(" It is only checked, not served: no driver makes its machines yet.");
        }
        page.section("##", &title, "", section);
    }
    page.outer.clear();
    page.section(
        "##",
        "The secure file",
        "",
        SecureFile::type_info().section.map(|describe| describe()),
    );
    page.text
}

fn mark(ours: bool) -> &'static str {
    if ours { " ●" } else { "" }
}

struct ReferencePage {
    text: String,
    seen: HashSet<&'static str>,
    /// The keys of the enclosing sections.
    outer: Vec<&'static str>,
}

impl ReferencePage {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn section(&mut self, level: &str, title: &str, path: &str, section: Option<SectionInfo>) {
        let Some(section) = section else { return };
        self.line(&format!("\n{level} {title}\n"));
        if !self.seen.insert(section.name) {
            self.line(&format!("As above: {}", section.doc));
            return;
        }
        self.line(&section.doc);
        self.line("\n| key | type | default | meaning |\n|---|---|---|---|");
        for key in &section.keys {
            self.row(key);
        }
        if section.other_keys.is_some() {
            self.line("| any other | whole number | — | Limit of the resource of that name. |");
        }
        let around = self.outer.len();
        let names = section.keys.iter();
        self.outer
            .extend(names.flat_map(|key| key.aliases.iter().copied().chain([key.key])));
        for key in &section.keys {
            if let Some(describe) = key.type_info.section {
                let list = if key.type_info.text.starts_with("list") {
                    "[]"
                } else {
                    ""
                };
                let inner = if path.is_empty() {
                    format!("{}{list}", key.key)
                } else {
                    format!("{path}.{}{list}", key.key)
                };
                self.section("###", &format!("`{inner}`"), &inner, Some(describe()));
            }
        }
        self.outer.truncate(around);
    }

    fn row(&mut self, key: &KeyInfo) {
        let mut meaning = key.doc.replace('|', "\\|");
        if !key.aliases.is_empty() {
            let aliases: Vec<String> = key
                .aliases
                .iter()
                .map(|alias| format!("`{alias}`"))
                .collect();
            let _ = write!(meaning, " Also written {}.", aliases.join(", "));
        }
        if key.deprecated {
            meaning.push_str(" Deprecated.");
        }
        if key.secret {
            meaning.push_str(" Never shown.");
        }
        let row = format!(
            "| `{}`{} | {} | {} | {meaning} |",
            key.key,
            mark(key.ours),
            key.type_info.text,
            self.fallback(key)
        );
        self.line(&row);
    }

    fn fallback(&self, key: &KeyInfo) -> String {
        match &key.fallback {
            DefaultValue::Required => "required".into(),
            DefaultValue::Optional => "—".into(),
            DefaultValue::Inherited(text) => self.inherited(key, text).into(),
            DefaultValue::Value(Json::Null) => "unlimited".into(),
            DefaultValue::Value(Json::Array(items)) if items.is_empty() => "none".into(),
            DefaultValue::Value(Json::Object(items)) if items.is_empty() => "none".into(),
            DefaultValue::Value(Json::Object(_)) if key.type_info.section.is_some() => {
                "see below".into()
            }
            DefaultValue::Value(Json::String(text)) => format!("`{text}`"),
            DefaultValue::Value(value) => format!("{value}"),
        }
    }

    /// Returns where a default comes from. A section that is used in several places may have no enclosing one to
    /// inherit from.
    fn inherited<'t>(&self, key: &KeyInfo, text: &'t str) -> &'t str {
        let (from, otherwise) = match text.split_once(", else ") {
            Some(parts) => parts,
            None if key.type_info.text.starts_with("list of ")
                || key.type_info.text.starts_with("mapping of ") =>
            {
                (text, "none")
            }
            None => (text, "—"),
        };
        if from.ends_with("'s") && !self.outer.contains(&key.key) {
            otherwise
        } else {
            text
        }
    }
}
