#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::collections::BTreeMap;
use std::time::Duration;

use caracal_model::Prefix;
use proptest::prelude::*;

use super::*;

/// RFC 1071, word by word: 0 over what holds its own checksum.
fn checksum(octets: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in octets.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The packet's upper layer behind its pseudo header.
fn with_pseudo_header(packet: &[u8], protocol: u8) -> Vec<u8> {
    let (addresses, upper) = match packet[0] >> 4 {
        4 => (&packet[12..20], &packet[20..]),
        _ => (&packet[8..40], &packet[40..]),
    };
    let len = (upper.len() as u32).to_be_bytes();
    [addresses, &len, &[0, 0, 0, protocol], upper].concat()
}

fn assert_sound(packet: &[u8], protocol: u8) {
    if packet[0] >> 4 == 4 {
        assert_eq!(checksum(&packet[..20]), 0, "IPv4 header: {packet:?}");
    }
    let upper = match protocol {
        1 => packet[20..].to_vec(),
        _ => with_pseudo_header(packet, protocol),
    };
    assert_eq!(checksum(&upper), 0, "protocol {protocol}: {packet:?}");
}

/// An IP packet around some octets of a protocol.
fn ip(is_v4: bool, protocol: u8, hop_limit: u8, number: u16, upper: &[u8]) -> Vec<u8> {
    let mut packet = if is_v4 {
        let total = (20 + upper.len() as u16).to_be_bytes();
        let id = number.to_be_bytes();
        let mut header = vec![0x45, 0, total[0], total[1], id[0], id[1], 0x40, 0];
        header.extend([hop_limit, protocol, 0, 0, 10, 5, 1, 9, 10, 5, 72, 9]);
        let sum = checksum(&header).to_be_bytes();
        header[10..12].copy_from_slice(&sum);
        header
    } else {
        let len = (upper.len() as u16).to_be_bytes();
        let mut header = vec![0x60, 0, 0, 0, len[0], len[1], protocol, hop_limit];
        header.extend(
            "fd00:5:0:1::9"
                .parse::<std::net::Ipv6Addr>()
                .unwrap()
                .octets(),
        );
        header.extend(
            "fd00:5:0:72::9"
                .parse::<std::net::Ipv6Addr>()
                .unwrap()
                .octets(),
        );
        header
    };
    packet.extend(upper);
    packet
}

#[derive(Clone, Debug)]
struct TcpFields {
    is_v4: bool,
    hop_limit: u8,
    number: u16,
    sequence: u32,
    flags: u8,
    port: u16,
    /// Words of options.
    options: u8,
}

/// A TCP segment; its checksum is finished.
fn tcp(fields: &TcpFields, data: &[u8]) -> Vec<u8> {
    let mut upper = fields.port.to_be_bytes().to_vec();
    upper.extend([0, 80]);
    upper.extend(fields.sequence.to_be_bytes());
    upper.extend([0, 0, 0, 7, (5 + fields.options) << 4, fields.flags, 1, 0]);
    upper.extend([0, 0, 0, 0]);
    upper.extend(vec![1; usize::from(fields.options) * 4]);
    upper.extend(data);
    let mut packet = ip(fields.is_v4, 6, fields.hop_limit, fields.number, &upper);
    let at = packet.len() - upper.len() + 16;
    let sum = checksum(&with_pseudo_header(&packet, 6)).to_be_bytes();
    packet[at..at + 2].copy_from_slice(&sum);
    packet
}

fn fields() -> impl Strategy<Value = TcpFields> {
    let numbers = (any::<u16>(), any::<u32>(), any::<u16>());
    (any::<bool>(), 2u8.., numbers, prop::bool::ANY, 0u8..4).prop_map(
        |(is_v4, hop_limit, (number, sequence, port), pushed, options)| TcpFields {
            is_v4,
            hop_limit,
            number,
            sequence,
            flags: 0x10 | if pushed { 8 } else { 0 },
            port,
            options,
        },
    )
}

fn table() -> RelayTable {
    let hops = [
        ("10.5.72.0/24", "10.200.0.3:8285"),
        ("10.5.72.128/25", "10.200.0.4:8285"),
        ("fd00:5:0:72::/64", "[fd00::3]:8285"),
    ];
    let hops = hops.map(|(subnet, to)| (subnet.parse().unwrap(), to.parse().unwrap()));
    let own = [
        ("10.5.0.0/16", "10.5.1.0/24"),
        ("fd00:5::/48", "fd00:5:0:1::/64"),
    ];
    let own = own.map(|(network, own)| (network.parse().unwrap(), own.parse().unwrap()));
    RelayTable::new(BTreeMap::from(hops), own)
}

fn source(is_v4: bool) -> IpAddr {
    let family = if is_v4 { Family::Ipv4 } else { Family::Ipv6 };
    table().answer_source(family).unwrap()
}

#[test]
fn packets_go_to_the_longest_subnet_with_one_hop_less() {
    let table = table();
    for (is_v4, last, to) in [
        (true, 9, "10.200.0.3:8285"),
        (true, 200, "10.200.0.4:8285"),
        (false, 9, "[fd00::3]:8285"),
    ] {
        let mut packet = ip(is_v4, 17, 64, 1, &[0; 8]);
        if is_v4 {
            packet[19] = last;
            packet[10..12].fill(0);
            let sum = checksum(&packet[..20]).to_be_bytes();
            packet[10..12].copy_from_slice(&sum);
        }
        assert_eq!(relay_outbound(&mut packet, &table), Ok(to.parse().unwrap()));
        assert_eq!(packet[if is_v4 { 8 } else { 7 }], 63);
        assert!(!is_v4 || checksum(&packet[..20]) == 0);
        // The other side, with padding behind the packet.
        let len = packet.len();
        packet.extend([0; 3]);
        assert_eq!(relay_inbound(&mut packet), Ok(len));
        assert_eq!(packet[if is_v4 { 8 } else { 7 }], 62);
    }
}

#[test]
fn what_goes_nowhere_is_as_it_was_and_has_a_reason() {
    let table = table();
    let with = |change: fn(&mut Vec<u8>)| {
        let mut packet = ip(true, 17, 64, 1, &[0; 8]);
        change(&mut packet);
        packet
    };
    for (packet, reason) in [
        (Vec::new(), DropReason::Malformed),
        (with(|p| p.truncate(27)), DropReason::Malformed),
        (with(|p| p[0] = 0x44), DropReason::Malformed),
        (with(|p| p[0] = 0x55), DropReason::Malformed),
        (with(|p| p[18] = 73), DropReason::NoNextHop),
        (with(|p| p[16] = 224), DropReason::LinkScope),
        (with(|p| p[16..20].fill(255)), DropReason::LinkScope),
        (with(|p| p[8] = 1), DropReason::HopLimit),
        (with(|p| p[8] = 0), DropReason::HopLimit),
        (ip(false, 17, 1, 0, &[0; 8]), DropReason::HopLimit),
    ] {
        let mut tried = packet.clone();
        assert_eq!(
            relay_outbound(&mut tried, &table),
            Err(reason),
            "{packet:?}"
        );
        assert_eq!(tried, packet);
    }
    let numbered = DropReason::ALL.iter().enumerate();
    assert!(
        numbered
            .into_iter()
            .all(|(n, reason)| *reason as usize == n)
    );
}

#[test]
fn answers_come_from_nobodys_address() {
    assert_eq!(source(true), "10.5.0.0".parse::<IpAddr>().unwrap());
    assert_eq!(source(false), "fd00:5::".parse::<IpAddr>().unwrap());
    let network: Prefix = "10.5.0.0/16".parse().unwrap();
    let first = RelayTable::new(BTreeMap::new(), [(network, "10.5.0.0/24".parse().unwrap())]);
    let behind = Some("10.5.1.0".parse().unwrap());
    assert_eq!(first.answer_source(Family::Ipv4), behind);
    assert_eq!(first.answer_source(Family::Ipv6), None);
}

#[test]
fn senders_are_told() {
    for is_v4 in [true, false] {
        for (error, kind, word) in [
            (
                IcmpError::Unreachable,
                if is_v4 { [3, 0] } else { [1, 0] },
                0,
            ),
            (
                IcmpError::TooBig { mtu: 1372 },
                if is_v4 { [3, 4] } else { [2, 0] },
                1372,
            ),
        ] {
            let packet = ip(is_v4, 17, 64, 1, &[7; 1400]);
            let told = icmp_answer(&packet, source(is_v4), error).unwrap();
            let (header, largest) = if is_v4 { (20, 576) } else { (40, 1280) };
            assert_eq!(told.len(), largest);
            assert_sound(&told, if is_v4 { 1 } else { 58 });
            let read = IpHeader::parse(&told).unwrap();
            assert_eq!(read.source, source(is_v4));
            assert_eq!(read.destination, IpHeader::parse(&packet).unwrap().source);
            assert_eq!(read.total_len, told.len());
            assert_eq!(told[header..header + 2], kind);
            assert_eq!(told[header + 4..header + 8], u32::to_be_bytes(word));
            assert_eq!(told[header + 8..], packet[..largest - header - 8]);
        }
    }
    // An echo is no error.
    for (is_v4, protocol, kind) in [(true, 1, 8), (false, 58, 128)] {
        let echo = ip(is_v4, protocol, 64, 1, &[kind, 0, 0, 0, 0, 0, 0, 0]);
        assert!(icmp_answer(&echo, source(is_v4), IcmpError::Unreachable).is_some());
    }
}

#[test]
fn nobody_is_told_of_errors_fragments_and_groups() {
    let changed = |is_v4: bool, protocol: u8, upper: &[u8], change: fn(&mut Vec<u8>)| {
        let mut packet = ip(is_v4, protocol, 64, 1, upper);
        change(&mut packet);
        (is_v4, packet)
    };
    let nothing = |_: &mut Vec<u8>| {};
    for (is_v4, packet) in [
        changed(true, 1, &[3, 1, 0, 0, 0, 0, 0, 0], nothing),
        changed(true, 1, &[11, 0, 0, 0, 0, 0, 0, 0], nothing),
        changed(true, 1, &[], nothing),
        changed(true, 17, &[0; 8], |p| p[7] = 9),
        changed(true, 17, &[0; 8], |p| p[16] = 224),
        changed(true, 17, &[0; 8], |p| p[12..16].fill(0)),
        changed(true, 17, &[0; 8], |p| p[12..16].fill(255)),
        changed(true, 17, &[0; 8], |p| p[12] = 127),
        changed(false, 58, &[1, 0, 0, 0, 0, 0, 0, 0], nothing),
        // Behind destination options, and behind a fragment header.
        changed(false, 60, &[58, 0, 1, 4, 0, 0, 0, 0, 3, 0, 0, 0], nothing),
        changed(false, 44, &[17, 0, 0, 8, 0, 0, 0, 1, 0, 0], nothing),
        changed(false, 44, &[58, 0], nothing),
        changed(false, 17, &[0; 8], |p| p[24] = 0xff),
        changed(false, 17, &[0; 8], |p| p[8..24].fill(0)),
    ] {
        let told = icmp_answer(&packet, source(is_v4), IcmpError::Unreachable);
        assert_eq!(told, None, "{packet:?}");
    }
}

#[test]
fn answers_have_a_limit() {
    let mut limit = AnswerLimit::default();
    let allowed = |limit: &mut AnswerLimit, now: u64, times: usize| {
        let now = Duration::from_millis(now);
        (0..times).filter(|_| limit.allows(now)).count()
    };
    assert_eq!(allowed(&mut limit, 0, 100), 50);
    assert_eq!(allowed(&mut limit, 7, 100), 7);
    assert_eq!(allowed(&mut limit, 7, 1), 0);
    assert_eq!(allowed(&mut limit, 60_000, 100), 50);
}

#[test]
fn flannel_3_subnets_stay_until_leases_are_settled() {
    let known = table();
    let hops = [
        ("10.5.72.0/25", "10.200.0.5:8285"),
        ("10.5.9.0/24", "10.200.0.9:8285"),
    ];
    let hops = hops.map(|(subnet, to)| (subnet.parse().unwrap(), to.parse().unwrap()));
    let newer = RelayTable::new(BTreeMap::from(hops), []);
    assert_eq!(known.follow(newer.clone(), true), newer);
    let both = known.follow(newer.clone(), false);
    let hop = |table: &RelayTable, to: &str| {
        let hop = table.next_hop(to.parse().unwrap());
        hop.map(|hop| hop.ip().to_string()).unwrap_or_default()
    };
    assert_eq!(hop(&both, "10.5.9.1"), "10.200.0.9");
    assert_eq!(hop(&both, "10.5.72.1"), "10.200.0.5", "the newer one wins");
    assert_eq!(hop(&both, "10.5.72.200"), "10.200.0.4");
    assert_eq!(hop(&both, "fd00:5:0:72::1"), "fd00::3");
    assert_eq!(both.subnets(), 4);
    assert_eq!(hop(&newer, "fd00:5:0:72::1"), "");
}

#[test]
fn runs_are_of_one_destination_and_one_length() {
    let run = |lens: &[usize]| {
        let to = "10.200.0.3:8285".parse().unwrap();
        run_of_segments(lens.iter().map(|len| (to, *len)))
    };
    assert_eq!(run(&[]), 0);
    assert_eq!(run(&[1472]), 1);
    assert_eq!(run(&[1472, 1472, 100, 100]), 3, "a short one is the last");
    assert_eq!(run(&[52, 1472]), 1);
    assert_eq!(run(&[100; 99]), 64);
    assert_eq!(
        run(&[1472; 64]),
        44,
        "all of them are no larger than a packet"
    );
    let [a, b] = ["10.200.0.3:8285", "10.200.0.4:8285"].map(|to| to.parse().unwrap());
    assert_eq!(run_of_segments([(a, 9), (a, 9), (b, 9)]), 2);
}

#[test]
fn left_checksums_are_finished() {
    let udp = |data: [u8; 2]| {
        let mut packet = ip(
            true,
            17,
            64,
            1,
            &[0, 1, 0, 2, 0, 10, 0, 0, data[0], data[1]],
        );
        // What the kernel leaves: the sum of the pseudo header.
        let pseudo = with_pseudo_header(&packet, 17);
        let partial = !checksum(&pseudo[..16]);
        packet[26..28].copy_from_slice(&partial.to_be_bytes());
        packet
    };
    let mut left = vec![1, 0, 0, 0, 0, 0];
    left.extend(20u16.to_ne_bytes());
    left.extend(6u16.to_ne_bytes());
    let (offload, _) = Offload::parse(&mut left).unwrap();
    assert!(!offload.is_uncut());
    let mut ones = 0;
    for n in 0..=u16::MAX {
        let mut packet = udp(n.to_be_bytes());
        assert!(complete_checksum(&mut packet, &offload));
        assert_sound(&packet, 17);
        // Zero would say that there is none.
        assert_ne!(packet[26..28], [0, 0]);
        ones += usize::from(packet[26..28] == [0xff, 0xff]);
    }
    assert_eq!(ones, 1);
    assert!(!complete_checksum(&mut [0; 21], &offload));
    assert!(complete_checksum(&mut [0; 21], &Offload::default()));
}

/// What `merge_segments` writes, with merged packets cut again as the kernel does it.
fn through_merge(packets: &[&[u8]]) -> (usize, Vec<Vec<u8>>) {
    let (mut writes, mut all) = (0, Vec::new());
    merge_segments(packets, |offload, header, data| {
        writes += 1;
        let whole = [header, &data.concat()].concat();
        let mut read = [&offload.to_octets()[..], &whole].concat();
        let (again, packet) = Offload::parse(&mut read).unwrap();
        assert_eq!(again, offload);
        if !offload.is_uncut() {
            all.push(packet.to_vec());
            return;
        }
        let mut headers = Vec::new();
        for segment in split_segments(packet, &offload, &mut headers).unwrap() {
            all.push([&headers[segment.header], &packet[segment.data]].concat());
        }
    });
    (writes, all)
}

#[test]
fn segments_of_a_flow_are_one_packet() {
    for is_v4 in [true, false] {
        let packets: Vec<Vec<u8>> = (0..40u32)
            .map(|n| {
                let fields = TcpFields {
                    is_v4,
                    hop_limit: 62,
                    number: 65_530u16.wrapping_add(n as u16),
                    sequence: (u32::MAX - 5000).wrapping_add(n * 1000),
                    flags: if n == 39 { 0x18 } else { 0x10 },
                    port: 1234,
                    options: 3,
                };
                tcp(&fields, &vec![n as u8; if n == 39 { 7 } else { 1000 }])
            })
            .collect();
        let slices: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
        assert_eq!(through_merge(&slices), (1, packets.clone()));
        // One with a broken octet stays alone and broken.
        let mut broken = packets.clone();
        *broken[20].last_mut().unwrap() ^= 1;
        let slices: Vec<&[u8]> = broken.iter().map(Vec::as_slice).collect();
        assert_eq!(through_merge(&slices), (3, broken.clone()));
    }
}

proptest! {
    /// Whatever comes in whatever order, the kernel cuts merged packets into those that came.
    #[test]
    fn merging_loses_nothing(
        first in fields(),
        steps in prop::collection::vec((0u8..12, 1usize..40), 1..30),
    ) {
        let mut fields = first;
        let packets: Vec<Vec<u8>> = steps
            .iter()
            .map(|(step, len)| {
                match step {
                    0 => fields.port ^= 1,
                    1 => fields.sequence = fields.sequence.wrapping_add(5),
                    2 => fields.hop_limit ^= 4,
                    3 => fields.options ^= 1,
                    4 => fields.flags ^= 8,
                    5 => fields.is_v4 ^= true,
                    6 => fields.flags = 0x11,
                    7 => fields.flags = 0x10,
                    _ => {}
                }
                let len = if *step > 8 { 20 } else { *len };
                let mut packet = tcp(&fields, &vec![*step; len]);
                fields.sequence = fields.sequence.wrapping_add(len as u32);
                fields.number = fields.number.wrapping_add(1);
                if *step == 8 {
                    *packet.last_mut().unwrap() ^= 0x55;
                }
                packet
            })
            .collect();
        let slices: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
        let (_, came) = through_merge(&slices);
        prop_assert_eq!(came, packets);
    }

    /// A packet that the kernel left uncut arrives as sound segments with all of its data.
    #[test]
    fn cut_packets_are_sound(
        fields in fields(),
        data in prop::collection::vec(any::<u8>(), 1..5000),
        size in 1usize..2000,
        all_flags: bool,
    ) {
        let mut fields = fields;
        if all_flags {
            fields.flags = 0x99;
        }
        let packet = tcp(&fields, &data);
        let start = if fields.is_v4 { 20 } else { 40 };
        let header_len = packet.len() - data.len();
        let offload = Offload::tcp(fields.is_v4, start, header_len, size).unwrap();
        let mut headers = vec![9; 3];
        let segments = split_segments(&packet, &offload, &mut headers).unwrap();
        prop_assert_eq!(segments.len(), data.len().div_ceil(size));
        let mut seen: Vec<u8> = Vec::new();
        for (n, segment) in segments.iter().enumerate() {
            let header = &headers[segment.header.clone()];
            let whole = [header, &packet[segment.data.clone()]].concat();
            assert_sound(&whole, 6);
            let read = IpHeader::parse(&whole).unwrap();
            prop_assert_eq!(read.total_len, whole.len());
            let is_last = n + 1 == segments.len();
            prop_assert!(is_last || whole.len() == header_len + size);
            let flags = header[start + 13];
            prop_assert_eq!(flags & 9 != 0, is_last && fields.flags & 9 != 0);
            prop_assert_eq!(flags & 0x80 != 0, n == 0 && fields.flags & 0x80 != 0);
            let sequence = fields.sequence.wrapping_add(seen.len() as u32);
            prop_assert_eq!(&header[start + 4..start + 8], &sequence.to_be_bytes()[..]);
            seen.extend(&whole[header_len..]);
        }
        prop_assert_eq!(seen, data);
    }

    /// A checksum that was right stays right (RFC 1624 has a case where it did not).
    #[test]
    fn lowering_the_hop_limit_keeps_the_checksum(fields in fields()) {
        let mut packet = tcp(&fields, b"x");
        let before = packet.clone();
        prop_assert_eq!(relay_inbound(&mut packet), Ok(before.len()));
        assert_sound(&packet, 6);
        let mut fields = fields;
        fields.hop_limit -= 1;
        prop_assert_eq!(packet, tcp(&fields, b"x"));
    }

    #[test]
    fn no_octets_break_anything(
        mut octets in prop::collection::vec(any::<u8>(), 0..120),
        version in 0u8..3,
        left in prop::collection::vec(0u8..60, 10),
    ) {
        // Mostly something like IP.
        if let (Some(first), 1..) = (octets.first_mut(), version) {
            *first = if version == 1 { 0x45 } else { 0x60 };
        }
        for is_v4 in [true, false] {
            let told = icmp_answer(&octets, source(is_v4), IcmpError::TooBig { mtu: 1280 });
            if let Some(told) = told {
                assert_sound(&told, if is_v4 { 1 } else { 58 });
            }
        }
        let mut read = [&left[..], &octets].concat();
        let (offload, packet) = Offload::parse(&mut read).unwrap();
        let _segments = split_segments(packet, &offload, &mut Vec::new());
        let _done = complete_checksum(packet, &offload);
        let _to = relay_outbound(packet, &table());
        let (_, came) = through_merge(&[&octets, &octets]);
        prop_assert_eq!(came, vec![octets.clone(), octets.clone()]);
        let _len = relay_inbound(&mut octets);
    }
}
