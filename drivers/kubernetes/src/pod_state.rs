//! What the status of a pod means for its launch, as a pure function.

pub(crate) mod image_pull;
mod placement;

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};
use nodeyard_driver::{Error, ErrorClass};

#[derive(Debug)]
pub(crate) enum PodState {
    /// It may still start; with the reason why it has not.
    Waiting(String),
    /// No node of the cluster has room for it.
    Unschedulable {
        /// The message of the scheduler.
        message: String,
        /// Whether it would not fit an empty node either.
        fits_no_node: bool,
    },
    /// An image cannot be pulled; the kubelet tries again.
    PullFails(String),
    Running {
        /// Whether its readiness probes succeed.
        ready: bool,
    },
    /// It cannot start any more.
    Failed(Error),
}

/// Reasons of waiting containers that will not start.
const FATAL: &[(&str, ErrorClass)] = &[
    ("InvalidImageName", ErrorClass::Permanent),
    ("ErrImageNeverPull", ErrorClass::Permanent),
    ("ImageInspectError", ErrorClass::Failed),
    ("SignatureValidationFailed", ErrorClass::Failed),
    ("CrashLoopBackOff", ErrorClass::Failed),
    ("CreateContainerConfigError", ErrorClass::Failed),
    ("CreateContainerError", ErrorClass::Failed),
    ("RunContainerError", ErrorClass::Failed),
];

/// Reasons of containers that wait for the next pull of their image.
const PULL_FAILED: &[&str] = &["ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"];
/// Part of the message when the kubelet only delays a pull.
const PULL_DELAYED: &str = "QPS exceeded";

pub(crate) fn judge(pod: &Pod) -> PodState {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let failed =
        |class, text: String| PodState::Failed(Error::new(class, format!("pod {name} {text}")));
    if pod.metadata.deletion_timestamp.is_some() {
        return failed(
            ErrorClass::Failed,
            "is being deleted by someone else".to_owned(),
        );
    }
    let Some(status) = &pod.status else {
        return PodState::Waiting("the cluster has not processed the pod yet".to_owned());
    };
    let phase = status.phase.as_deref().unwrap_or("Pending");
    if matches!(phase, "Failed" | "Succeeded") {
        let class = match status.reason.as_deref() {
            Some(reason) if reason.starts_with("OutOf") => ErrorClass::Capacity,
            _ => ErrorClass::Failed,
        };
        return failed(class, format!("has ended ({phase}){}", end_of(status)));
    }
    let mut pull_fails = None;
    for container in containers(status) {
        let waiting = container
            .state
            .as_ref()
            .and_then(|state| state.waiting.as_ref());
        let Some(waiting) = waiting else { continue };
        let reason = waiting.reason.as_deref().unwrap_or_default();
        let message = waiting.message.as_deref().unwrap_or_default();
        let text = format!("container {} is in {reason}: {message}", container.name);
        if let Some((_, class)) = FATAL.iter().find(|(known, _)| *known == reason) {
            let last = container.last_state.as_ref().map(ended).unwrap_or_default();
            return failed(*class, format!("cannot run: {text}{last}"));
        }
        if PULL_FAILED.contains(&reason) && !message.contains(PULL_DELAYED) {
            pull_fails.get_or_insert(text);
        }
    }
    if let Some(text) = pull_fails {
        return PodState::PullFails(text);
    }
    if let Some(message) = unschedulable(status) {
        let fits_no_node = placement::fits_no_node(&message);
        return PodState::Unschedulable {
            message,
            fits_no_node,
        };
    }
    let running = |container: &ContainerStatus| {
        let state = container.state.as_ref();
        state.is_some_and(|state| state.running.is_some())
    };
    let all_run = status
        .container_statuses
        .as_ref()
        .is_some_and(|all| all.iter().all(running));
    if phase == "Running" && all_run {
        return PodState::Running {
            ready: is_ready(status),
        };
    }
    PodState::Waiting(waits_for(phase, status))
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    lists.into_iter().flatten().flatten()
}

fn is_ready(status: &PodStatus) -> bool {
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let mut ready = conditions
        .iter()
        .filter(|condition| condition.type_ == "Ready");
    ready.any(|condition| condition.status == "True")
}

fn unschedulable(status: &PodStatus) -> Option<String> {
    // Another pod is being preempted for it.
    if status
        .nominated_node_name
        .as_deref()
        .is_some_and(|node| !node.is_empty())
    {
        return None;
    }
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let scheduled = conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled")?;
    let unschedulable =
        scheduled.status == "False" && scheduled.reason.as_deref() == Some("Unschedulable");
    unschedulable.then(|| scheduled.message.clone().unwrap_or_default())
}

fn end_of(status: &PodStatus) -> String {
    let mut text = String::new();
    for part in [&status.reason, &status.message].into_iter().flatten() {
        text.push_str(": ");
        text.push_str(part);
    }
    for container in containers(status) {
        if let Some(state) = &container.state {
            let end = ended(state);
            if !end.is_empty() {
                text.push_str(&format!("; container {}{end}", container.name));
            }
        }
    }
    text
}

/// Describes how a container ended; empty if it has not.
fn ended(state: &ContainerState) -> String {
    let Some(end) = &state.terminated else {
        return String::new();
    };
    let mut text = format!(" ended with exit code {}", end.exit_code);
    for part in [&end.reason, &end.message].into_iter().flatten() {
        text.push_str(&format!(", {}", part.trim()));
    }
    text
}

fn waits_for(phase: &str, status: &PodStatus) -> String {
    let states = containers(status).filter_map(|container| {
        let state = container.state.as_ref()?;
        let name = &container.name;
        if let Some(waiting) = &state.waiting {
            let reason = waiting.reason.as_deref().unwrap_or("waiting");
            return Some(format!("container {name} is in {reason}"));
        }
        let end = ended(state);
        (!end.is_empty()).then(|| format!("container {name}{end}"))
    });
    let states: Vec<_> = states.collect();
    if states.is_empty() {
        format!("the pod is {phase}")
    } else {
        format!("the pod is {phase}: {}", states.join(", "))
    }
}

#[cfg(test)]
mod tests;
