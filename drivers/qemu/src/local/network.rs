//! Finds the address and port of a guest.

use std::net::Ipv4Addr;

/// Returns the port of this host that is forwarded to `guest_port`, from the output of `info usernet`.
///
/// QEMU listens on port 0, so that the system chooses a free one; only this table contains the choice.
pub(super) fn forwarded_port(table: &str, guest_port: u16) -> Option<u16> {
    table.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        if fields.next()? != "TCP[HOST_FORWARD]" {
            return None;
        }
        // File descriptor, source address, source port, destination address, destination port.
        let port = fields.nth(2)?.parse().ok()?;
        let destination: u16 = fields.nth(1)?.parse().ok()?;
        (destination == guest_port).then_some(port)
    })
}

/// Returns the address of the neighbour with this MAC address, from `/proc/net/arp`. The kernel adds it when the guest
/// sends packets to this host, such as to its DHCP server.
pub(super) fn neighbour(table: &str, mac: &str, device: &str) -> Option<Ipv4Addr> {
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        match fields.as_slice() {
            [address, _type, flags, card, _mask, on]
                if card.eq_ignore_ascii_case(mac) && *on == device && *flags != "0x0" =>
            {
                address.parse().ok()
            }
            _ => None,
        }
    })
}

/// Returns a MAC address with the prefix of QEMU.
pub(crate) fn random_mac() -> Box<str> {
    let [a, b, c, ..] = *uuid::Uuid::new_v4().as_bytes();
    format!("52:54:00:{a:02x}:{b:02x}:{c:02x}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_that_of_the_forward() {
        let table = "Hub -1 (net0):\r\n  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\r\n  \
                     TCP[ESTABLISHED]   15       127.0.0.1 54321       10.0.2.15    22     0     0\r\n  \
                     TCP[HOST_FORWARD]  12       127.0.0.1 42831       10.0.2.15    22     0     0\r\n";
        assert_eq!(forwarded_port(table, 22), Some(42831));
        assert_eq!(forwarded_port(table, 5986), None);
        assert_eq!(forwarded_port("TCP[HOST_FORWARD] x", 22), None);
        assert_eq!(forwarded_port("", 22), None);
    }

    #[test]
    fn a_neighbour_is_found_by_its_mac_address() {
        let table = "IP address       HW type     Flags       HW address            Mask     Device\n\
                     10.9.0.7         0x1         0x2         52:54:00:AA:00:01     *        br0\n\
                     10.9.0.8         0x1         0x0         52:54:00:aa:00:02     *        br0\n\
                     10.9.0.9         0x1         0x2         52:54:00:aa:00:03     *        eth0\n";
        let of = |mac| neighbour(table, mac, "br0");
        assert_eq!(of("52:54:00:aa:00:01"), Some(Ipv4Addr::new(10, 9, 0, 7)));
        assert_eq!(of("52:54:00:aa:00:02"), None, "not resolved yet");
        assert_eq!(of("52:54:00:aa:00:03"), None, "on another network");
        assert!(random_mac().starts_with("52:54:00:") && random_mac().len() == 17);
    }
}
