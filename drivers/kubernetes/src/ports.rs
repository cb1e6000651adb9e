//! The order in which the ports of a range are given out.

use std::ops::RangeInclusive;

use nodeyard_model::NodeId;

/// Returns the ports in the order in which they are tried for a node. The ids of nodes count up, so a port that was released
/// is used again after all others.
pub(crate) fn in_order(
    range: RangeInclusive<u16>,
    node: NodeId,
) -> impl Iterator<Item = u16> + Send {
    let (first, last) = (u64::from(*range.start()), u64::from(*range.end()));
    let count = (last + 1).saturating_sub(first);
    let start = node.sequence().checked_rem(count).unwrap_or_default();
    (0..count)
        .map(move |turn| first + (start + turn) % count)
        .filter_map(|port| u16::try_from(port).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(range: RangeInclusive<u16>, node: &str) -> Vec<u16> {
        in_order(range, node.parse().unwrap()).collect()
    }

    #[test]
    fn a_released_port_is_used_again_after_all_others() {
        assert_eq!(ports(2200..=2203, "0000000001"), [2201, 2202, 2203, 2200]);
        assert_eq!(ports(2200..=2203, "0000000002"), [2202, 2203, 2200, 2201]);
        assert_eq!(ports(2200..=2200, "0000000003"), [2200]);
        assert_eq!(ports(65535..=65535, "0000000003"), [65535]);
        assert_eq!(ports(RangeInclusive::new(2, 1), "0000000003"), [0; 0]);
        let last = ports(0..=u16::MAX, "9999999999");
        assert_eq!(last.len(), 65536);
    }
}
