//! Servers of a real OpenStack: our driver beside that of Python Nodepool, on the same services in one run.
//!
//! Both reach the services through a gateway that counts their calls. The cloud's own time is the same for both, so it is
//! left out: what is compared is the time from a request to the call that makes its server, and from the moment at which
//! the cloud has the server as active to the record that says so. The cloud's records are read for that, not its services.

mod bout;
mod watch;

use std::path::Path;
use std::time::Duration;

use clap::Args;
use nodeyard_testbeds::OpenStack;

use self::bout::Outcome;
use crate::launcher::{Arena, Who};
use crate::report::{self, Figure};

/// How large the load of the OpenStack benchmark is
#[derive(Debug, Clone, Args)]
pub(crate) struct Servers {
    /// Servers that are requested at once
    #[arg(long, default_value_t = 50, value_name = "COUNT")]
    servers: usize,
    /// Show each kind of call
    #[arg(long)]
    show_calls: bool,
}

/// Prints as it goes: this takes minutes.
pub(crate) async fn measure(program: Option<&Path>, load: &Servers) -> anyhow::Result<()> {
    let build = if cfg!(debug_assertions) {
        ", debug build"
    } else {
        ""
    };
    let count = load.servers;
    report::print_title(&format!(
        "OpenStack, {count} servers requested at once{build}"
    ));
    let arena = Arena::new(program)?;
    let cloud = OpenStack::start()?;
    let python = bout::hold(&arena, &cloud, Who::Python, count).await?;
    show_effort(load, Who::Python, &python);
    let ours = bout::hold(&arena, &cloud, Who::Ours, count).await?;
    show_effort(load, Who::Ours, &ours);
    let (calls, reached) = half(python.calls() as f64, ours.calls() as f64);
    let all_calls = counted("all calls", python.calls(), ours.calls()).aim(calls, reached);
    let (python_time, our_time) = (python.own_time(), ours.own_time());
    let (time, reached) = half(python_time.as_secs_f64(), our_time.as_secs_f64());
    let own_time = timed("time that is not the cloud's, mean", python_time, our_time);
    report::print_figures(&[
        counted(
            "calls from request to ready",
            python.launching(),
            ours.launching(),
        ),
        counted(
            "calls from return to gone",
            python.removing(),
            ours.removing(),
        ),
        all_calls,
        timed(
            "request to the call for its server, mean",
            python.to_create,
            ours.to_create,
        ),
        timed("active to ready, mean", python.to_ready, ours.to_ready),
        own_time.aim(time, reached),
        timed(
            "first request to last node ready",
            python.all_ready,
            ours.all_ready,
        ),
        timed(
            "return to the last node gone",
            python.all_gone,
            ours.all_gone,
        ),
    ]);
    Ok(())
}

fn show_effort(load: &Servers, who: Who, outcome: &Outcome) {
    let figure = Figure::new(
        format!("{}: processor time of the launcher", who.name()),
        format!("{:.2} s", outcome.computed),
    );
    report::print_figures(&[figure]);
    if load.show_calls {
        let kinds = outcome.kinds().into_iter();
        let figures: Vec<Figure> = kinds
            .map(|(kind, count)| Figure::new(format!("  {kind}"), count.to_string()))
            .collect();
        report::print_figures(&figures);
    }
}

/// What is aimed for, and whether it is reached.
fn half(python: f64, ours: f64) -> (String, bool) {
    let ratio = ours / python;
    (format!("half of Python's: {ratio:.2}"), ratio <= 0.5)
}

fn counted(what: &str, python: usize, ours: usize) -> Figure {
    let ratio = ours as f64 / python as f64;
    let against = format!("Python {python}, ratio {ratio:.2}");
    Figure::new(what, ours.to_string()).against(against)
}

fn timed(what: &str, python: Duration, ours: Duration) -> Figure {
    let (python, ours) = (python.as_secs_f64(), ours.as_secs_f64());
    let against = format!("Python {python:.2} s, ratio {:.3}", ours / python);
    Figure::new(what, format!("{ours:.2} s")).against(against)
}
