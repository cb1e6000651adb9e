//! How much of a cloud's quota machines use.

use nodeyard_model::Resources;

use super::LabelOptions;

/// Returns how much one server with volumes of these sizes in GB uses.
pub fn takes(vcpus: i64, ram: i64, volumes: impl IntoIterator<Item = i64>) -> Resources {
    let mut takes = Resources::new(vcpus, 1, ram);
    let (mut count, mut size) = (0_i64, 0_i64);
    for gigabytes in volumes {
        count += 1;
        size = size.saturating_add(gigabytes);
    }
    if count > 0 {
        takes.set("volumes".into(), count);
        takes.set("volume-gb".into(), size);
    }
    takes
}

impl LabelOptions {
    /// Returns how much a server of this label uses, given the size of its flavor.
    pub fn takes(&self, vcpus: i64, ram: i64) -> Resources {
        let size = |gigabytes| i64::try_from(gigabytes).unwrap_or(i64::MAX);
        takes(vcpus, ram, self.boot_volume.map(size))
    }
}
