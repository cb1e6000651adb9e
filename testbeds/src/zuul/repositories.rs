//! The git repositories that Zuul watches: one with the pipeline and the base job, and one for each job.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::configuration::REPOSITORIES;
use super::{Job, ZuulOptions};
use crate::checkout::testbeds;

const WORKING_COPIES: &str = "work";

pub(super) fn create(bed: &Path, options: &ZuulOptions) -> Result<()> {
    let templates = testbeds().join("zuul");
    create_one(bed, "config", &templates.join("config-repository"), None)?;
    for project in &options.projects {
        let definition = Some(&*project.definition);
        create_one(bed, &project.name, &project.template, definition)?;
    }
    for job in &options.jobs {
        let definition = definition(job);
        let template = match job.image {
            Some(_) => templates.join("image-job-repository"),
            None => templates.join("job-repository"),
        };
        create_one(bed, &job.name, &template, Some(&definition))?;
    }
    Ok(())
}

/// Adds a commit to a repository and returns its id.
pub(super) fn push(bed: &Path, project: &str) -> Result<String> {
    let work = working_copy(bed, project);
    git(&work, &["commit", "--allow-empty", "-m", "another commit"])?;
    git(&work, &["push", "origin", "master"])?;
    Ok(git(&work, &["rev-parse", "HEAD"])?.trim().to_owned())
}

fn create_one(bed: &Path, name: &str, template: &Path, definition: Option<&str>) -> Result<()> {
    let repository = bed.join(REPOSITORIES).join(name).display().to_string();
    let work = working_copy(bed, name);
    copy_directory(template, &work)?;
    if let Some(definition) = definition {
        fs::write(work.join("zuul.yaml"), definition)?;
    }
    copy_directory(&testbeds().join("../roles"), &work.join("roles"))?;
    git(bed, &["init", "--bare", "-b", "master", &repository])?;
    git(&work, &["init", "-b", "master"])?;
    git(&work, &["remote", "add", "origin", &repository])?;
    git(&work, &["add", "--all"])?;
    git(&work, &["commit", "-m", "first commit"])?;
    git(&work, &["push", "origin", "master"])?;
    Ok(())
}

fn working_copy(bed: &Path, name: &str) -> PathBuf {
    bed.join(WORKING_COPIES).join(name)
}

fn definition(job: &Job) -> String {
    let (name, image) = (&job.name, job.image.as_ref());
    let nodes: String = (1..)
        .zip(&job.labels)
        .map(|(number, label)| format!("        - {{name: node{number}, label: {label}}}\n"))
        .collect();
    format!(
        "- job:\n    \
             name: {name}\n    \
             parent: base\n    \
             run: playbooks/run.yaml\n    \
             vars: {{meant_to_fail: {fails}, image_store: '{store}', image_url: '{url}'}}\n    \
             nodeset:\n      \
               nodes:\n{nodes}\
         - project:\n    \
             post: {{jobs: [{name}]}}\n",
        fails = job.meant_to_fail,
        store = image.map_or(String::new(), |image| image.store.display().to_string()),
        url = image.map_or("", |image| &image.url),
    )
}

fn copy_directory(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_directory(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// What the user has configured does not matter.
fn git(directory: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .args(["-c", "user.name=bed", "-c", "user.email=bed@localhost"])
        .args(arguments)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .current_dir(directory)
        .output()
        .context("cannot run git; run testbeds/zuul/install.sh")?;
    ensure!(
        output.status.success(),
        "git {} failed:\n{}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}
