//! A view of the image work of stewards below `/nodeyard/images`: their reports and the progress of jobs.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodeyard_model::ImageName;
use nodeyard_model::layout::IMAGE_STATUS;
use nodeyard_plan::images::{ImageJobProgress, StewardReport};
use nodeyard_store::TreePath;
use nodeyard_store::view::{Change, Kind, Shape, View};

/// What is known of the making of an image. The texts are names of records and good for nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ImageWorkId {
    TaskReport(ImageName, Box<str>),
    Job(ImageName, Box<str>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ImageWork {
    TaskReport(StewardReport),
    Job(ImageJobProgress),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageWorkShape;

impl Shape for ImageWorkShape {
    type Id = ImageWorkId;
    type Value = ImageWork;

    fn kind(&self, path: &TreePath) -> Kind<ImageWorkId> {
        let below = path.as_str().strip_prefix(IMAGE_STATUS);
        let Some(below) = below.and_then(|below| below.strip_prefix('/')) else {
            return Kind::Nothing;
        };
        let mut parts = below.split('/');
        let Some(image) = parts.next().and_then(|image| image.parse().ok()) else {
            return Kind::Nothing;
        };
        let id = match (parts.next(), parts.next(), parts.next()) {
            (None | Some("stewards" | "jobs"), None, None) => return Kind::Directory,
            (Some("stewards"), Some(name), None) => ImageWorkId::TaskReport(image, name.into()),
            (Some("jobs"), Some(name), None) => ImageWorkId::Job(image, name.into()),
            _ => return Kind::Nothing,
        };
        Kind::Record {
            id,
            branch: false,
            lock: false,
        }
    }

    fn parse(
        &self,
        id: &ImageWorkId,
        data: &[u8],
    ) -> Result<ImageWork, Box<dyn std::error::Error + Send + Sync>> {
        Ok(match id {
            ImageWorkId::TaskReport(..) => ImageWork::TaskReport(serde_json::from_slice(data)?),
            ImageWorkId::Job(..) => ImageWork::Job(serde_json::from_slice(data)?),
        })
    }
}

/// What all stewards report, by image.
pub(crate) struct Reports(BTreeMap<ImageName, Vec<Arc<ImageWork>>>);

impl Reports {
    pub(crate) fn of(view: &View<ImageWorkShape>) -> Self {
        let mut reports: BTreeMap<_, Vec<_>> = BTreeMap::new();
        view.for_each(|item| {
            if let ImageWorkId::TaskReport(image, _) = item.id {
                reports.entry(image).or_default().push(item.value);
            }
        });
        Self(reports)
    }

    pub(crate) fn on(&self, image: &ImageName) -> Vec<&StewardReport> {
        let works = self.0.get(image).into_iter().flatten();
        let reports = works.filter_map(|work| match &**work {
            ImageWork::TaskReport(report) => Some(report),
            ImageWork::Job(_) => None,
        });
        reports.collect()
    }
}

/// Returns the images that a change may make available or not. How far a job is does neither.
pub(crate) fn reported_images(change: Change<ImageWorkId>) -> Change<ImageName> {
    match change {
        Change::Everything => Change::Everything,
        Change::Ids(ids) => Change::Ids(
            ids.into_iter()
                .filter_map(|id| match id {
                    ImageWorkId::TaskReport(image, _) => Some(image),
                    ImageWorkId::Job(..) => None,
                })
                .collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_one_image_concerns_no_other() {
        let [one, other] = ["one", "other"].map(|image| image.parse::<ImageName>().unwrap());
        let ids = [
            ImageWorkId::TaskReport(one.clone(), "x".into()),
            ImageWorkId::Job(other, "x.cloud".into()),
        ];
        let changed = reported_images(Change::Ids(ids.into()));
        assert_eq!(changed, Change::Ids([one].into()));
        assert_eq!(reported_images(Change::Everything), Change::Everything);
    }

    #[test]
    fn reports_and_jobs_are_told_from_everything_else() {
        let kind = |path: &str| {
            let path = TreePath::new(format!("{IMAGE_STATUS}{path}")).unwrap();
            ImageWorkShape.kind(&path)
        };
        let image: ImageName = "debian".parse().unwrap();
        for directory in ["/debian", "/debian/stewards", "/debian/jobs"] {
            assert_eq!(kind(directory), Kind::Directory, "{directory}");
        }
        for nothing in ["", "/debian/canary", "/debian/zuul", "/debian/jobs/a/b"] {
            assert_eq!(kind(nothing), Kind::Nothing, "{nothing}");
        }
        let record = |id| Kind::Record {
            id,
            branch: false,
            lock: false,
        };
        assert_eq!(
            kind("/debian/stewards/x"),
            record(ImageWorkId::TaskReport(image.clone(), "x".into()))
        );
        assert_eq!(
            kind("/debian/jobs/x.cloud"),
            record(ImageWorkId::Job(image, "x.cloud".into()))
        );
    }
}
