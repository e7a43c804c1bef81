//! The handshake's messages, little endian. This module does no input or output.
//!
//! The bytes come from outside: each field is checked before it is used, and memory is allocated only for bytes that
//! have arrived. See `docs/protocol/data-path.md`.

use std::ops::RangeInclusive;

use crate::handshake::{body, count, encode_links, links, nothing_left, take};
use crate::plan::{LinkPorts, MAX_PORTS};
use crate::proof::{PROOF, name_of, proof};
use crate::verbs::address::{Address, Gid, LinkLayer, Mtu};

/// First bytes of every message; the digit is the version of this handshake.
const MAGIC: [u8; 8] = *b"phubrdm6";
/// The most NICs of a joiner.
const MAX_NICS: usize = 64;
/// The most ranges of a window, in all links of a connection together: enough for 32 GiB in ranges of 512 KiB.
pub(in crate::verbs) const MAX_RANGES: usize = 1 << 16;
/// The kernel's limit on a device's name.
const MAX_NAME: usize = 64;
/// The largest text of a refusal, in bytes.
const MAX_WORDS: usize = 4096;
/// The most pairs of NICs in one trial.
pub(in crate::verbs) const MAX_TRIALS: usize = 256;
/// The largest text of the reason why a pair cannot be tried, in bytes.
const MAX_REASON: usize = 1024;
/// The largest message, in bytes. The ports of the largest hub fit in it.
pub(in crate::verbs) const MAX_BYTES: usize = 1 << 19;
/// The value that stands for an unknown subnet prefix.
const UNKNOWN: u8 = 255;
/// The range of the numbers of queue pairs and packets, which have 24 bits.
const BITS_24: RangeInclusive<u32> = 0..=0xff_ffff;

/// A message of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum Message {
    /// The worker's request, and the proof that the worker has the token.
    Hello { hello: Hello, proof: [u8; PROOF] },
    /// The addresses of the hub's ports, and the size of the window that the hub writes. Sent by the hub.
    Ports { send_bytes: u64, ports: Vec<Address> },
    /// Pairs of NICs that the worker wants to try before links use them. For each pair, the port of the hub and the
    /// worker's own end. Sent by the worker.
    Trial { nics: Vec<Address>, ends: Vec<(u16, LinkEnd)> },
    /// The hub's end of each pair of a `Trial`, or the reason why the hub has none.
    Tried(Vec<Result<LinkEnd, String>>),
    /// The ports of the hub whose NICs no NIC of the worker reaches. Sent by the worker. The hub then sends
    /// its ports again. If the list is empty, all ports are reached, and both ends make the links.
    Unreached(Vec<u16>),
    /// The sender's ends of the links. Sent by the worker and by the hub.
    Links(Links),
    /// The worker's report that all links are connected.
    Ready,
    /// A refusal, with the reason. Sent by either end.
    Refused(String),
}

/// The hello of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct Hello {
    /// The name of the worker's token.
    pub name: [u8; 16],
    /// The size of the window that the worker writes.
    pub send_bytes: u64,
    /// The ports that its links join.
    pub links: Vec<LinkPorts>,
    /// The worker's NICs. The hub should choose its own NICs near them. Empty if a map pairs the NICs.
    pub nics: Vec<Address>,
}

/// One side's ends of all links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct Links {
    /// Address of the first byte of the window that the other side writes.
    pub address: u64,
    /// The size of that window.
    pub bytes: u64,
    /// The NICs of the ends. Empty from a hub: the worker knows the NICs of the hub's ports.
    pub nics: Vec<Address>,
    /// Whether the immediates of this side's posts are separate writes.
    pub apart: bool,
    /// The ends of the links, in the order in which the hello names the links.
    pub ends: Vec<LinkEnd>,
}

/// One side's end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct LinkEnd {
    /// The index of the end's NIC.
    pub nic: u16,
    /// The number of the queue pair.
    pub number: u32,
    /// The number of the first packet from this end.
    pub first_packet: u32,
    /// The keys on this end's NIC for the ranges that the other side writes, in ascending order.
    pub keys: Vec<u32>,
}

impl Hello {
    /// Returns the bytes that the proof covers: all bytes before the proof.
    pub fn text(&self) -> Vec<u8> {
        let Hello { name, send_bytes, links, nics } = self;
        let mut bytes = MAGIC.to_vec();
        bytes.push(0);
        bytes.extend(name);
        bytes.extend(send_bytes.to_le_bytes());
        encode_links(&mut bytes, links);
        encode_addresses(&mut bytes, nics);
        bytes
    }
}

impl Message {
    /// Returns the hello of a worker with this token.
    pub fn hello(token: [u8; 16], send_bytes: u64, links: Vec<LinkPorts>, nics: Vec<Address>) -> Self {
        let hello = Hello { name: name_of(token), send_bytes, links, nics };
        let proof = proof(token, &hello.text());
        Message::Hello { hello, proof }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        match self {
            Message::Hello { hello, proof } => {
                bytes = hello.text();
                bytes.extend(proof);
            }
            Message::Ports { send_bytes, ports } => {
                bytes.push(1);
                bytes.extend(send_bytes.to_le_bytes());
                encode_addresses(&mut bytes, ports);
            }
            Message::Links(links) => {
                bytes.push(if links.apart { 5 } else { 2 });
                links.encode(&mut bytes);
            }
            Message::Ready => bytes.push(3),
            Message::Refused(why) => {
                bytes.push(4);
                bytes.extend(cut(why, MAX_WORDS).bytes());
            }
            Message::Trial { nics, ends } => {
                bytes.push(6);
                encode_addresses(&mut bytes, nics);
                bytes.extend((ends.len() as u32).to_le_bytes());
                for (port, end) in ends {
                    bytes.extend(port.to_le_bytes());
                    end.encode(&mut bytes);
                }
            }
            Message::Tried(ends) => {
                bytes.push(7);
                bytes.extend((ends.len() as u32).to_le_bytes());
                for end in ends {
                    bytes.push(u8::from(end.is_ok()));
                    match end {
                        Ok(end) => end.encode(&mut bytes),
                        Err(why) => {
                            let why = cut(why, MAX_REASON);
                            bytes.extend((why.len() as u32).to_le_bytes());
                            bytes.extend(why.bytes());
                        }
                    }
                }
            }
            Message::Unreached(ports) => {
                bytes.push(8);
                bytes.extend((ports.len() as u32).to_le_bytes());
                bytes.extend(ports.iter().flat_map(|port| port.to_le_bytes()));
            }
        }
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut body = body(bytes, &MAGIC)?;
        let [kind] = take(&mut body)?;
        let message = match kind {
            0 => {
                let (name, send_bytes) = (take(&mut body)?, u64::from_le_bytes(take(&mut body)?));
                let (links, nics) = (links(&mut body)?, decode_addresses(&mut body, 0..=MAX_NICS)?);
                Message::Hello { hello: Hello { name, send_bytes, links, nics }, proof: take(&mut body)? }
            }
            1 => {
                let send_bytes = u64::from_le_bytes(take(&mut body)?);
                Message::Ports { send_bytes, ports: decode_addresses(&mut body, 1..=MAX_PORTS)? }
            }
            2 | 5 => Message::Links(Links::decode(&mut body, kind == 5)?),
            3 => Message::Ready,
            4 => {
                let words = &body[..body.len().min(MAX_WORDS)];
                body = &[];
                // The text is cut, because each byte that is not UTF-8 becomes three bytes.
                Message::Refused(cut(&String::from_utf8_lossy(words), MAX_WORDS).to_owned())
            }
            6 => {
                let nics = decode_addresses(&mut body, 1..=MAX_NICS)?;
                let count = count(&mut body, "pairs", 1..=MAX_TRIALS)?;
                let end = |_| Ok((u16::from_le_bytes(take(&mut body)?), LinkEnd::decode(&mut body, 0)?));
                let ends = (0..count).map(end).collect::<Result<_, String>>()?;
                Message::Trial { nics, ends }
            }
            7 => {
                let count = count(&mut body, "pairs", 1..=MAX_TRIALS)?;
                let end = |_| match take(&mut body)? {
                    [0] => Ok(Err(reason(&mut body)?)),
                    [1] => Ok(Ok(LinkEnd::decode(&mut body, 0)?)),
                    [other] => Err(format!("the outcome of a trial is {other}; expected 0 or 1")),
                };
                Message::Tried((0..count).map(end).collect::<Result<_, String>>()?)
            }
            8 => {
                let count = count(&mut body, "ports", 0..=MAX_PORTS)?;
                let ports = (0..count).map(|_| Ok(u16::from_le_bytes(take(&mut body)?)));
                Message::Unreached(ports.collect::<Result<_, String>>()?)
            }
            kind => return Err(format!("unknown kind {kind} of handshake message")),
        };
        nothing_left(body)?;
        Ok(message)
    }

    /// Returns the message's name, for the error of a message that was not expected.
    pub fn name(&self) -> &'static str {
        match self {
            Message::Hello { .. } => "a hello",
            Message::Ports { .. } => "the hub's ports",
            Message::Trial { .. } => "pairs of NICs to try",
            Message::Tried(_) => "ends of pairs of NICs to try",
            Message::Unreached(_) => "the ports that are not reached",
            Message::Links(_) => "ends of links",
            Message::Ready => "ready",
            Message::Refused(_) => "a refusal",
        }
    }
}

impl Links {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.address.to_le_bytes());
        bytes.extend(self.bytes.to_le_bytes());
        encode_addresses(bytes, &self.nics);
        bytes.extend((self.ends.len() as u32).to_le_bytes());
        self.ends.iter().for_each(|end| end.encode(bytes));
    }

    fn decode(body: &mut &[u8], apart: bool) -> Result<Self, String> {
        let address = u64::from_le_bytes(take(body)?);
        let bytes = u64::from_le_bytes(take(body)?);
        if address.checked_add(bytes).is_none() {
            return Err(format!("a window of {bytes} bytes at {address:#x} does not fit into memory"));
        }
        let nics = decode_addresses(body, 0..=MAX_NICS)?;
        let count = count(body, "links", 1..=MAX_PORTS)?;
        let (mut ends, mut left) = (Vec::new(), MAX_RANGES);
        for _ in 0..count {
            let end = LinkEnd::decode(body, left)?;
            left -= end.keys.len();
            ends.push(end);
        }
        Ok(Links { address, bytes, nics, apart, ends })
    }
}

impl LinkEnd {
    fn encode(&self, bytes: &mut Vec<u8>) {
        let LinkEnd { nic, number, first_packet, keys } = self;
        bytes.extend(nic.to_le_bytes());
        bytes.extend(number.to_le_bytes());
        bytes.extend(first_packet.to_le_bytes());
        bytes.extend((keys.len() as u32).to_le_bytes());
        bytes.extend(keys.iter().flat_map(|key| key.to_le_bytes()));
    }

    /// Decodes an end of at most `most` keys.
    fn decode(body: &mut &[u8], most: usize) -> Result<Self, String> {
        let nic = u16::from_le_bytes(take(body)?);
        let number = u32::from_le_bytes(take(body)?);
        let first_packet = u32::from_le_bytes(take(body)?);
        let count = count(body, "keys", 0..=most)?;
        if !BITS_24.contains(&number) || !BITS_24.contains(&first_packet) {
            return Err(format!(
                "the numbers of queue pair {number} and of its first packet {first_packet} must have at most 24 bits"
            ));
        }
        let mut keys = Vec::new();
        for _ in 0..count {
            keys.push(u32::from_le_bytes(take(body)?));
        }
        Ok(LinkEnd { nic, number, first_packet, keys })
    }
}

/// Decodes the reason why a pair cannot be tried.
fn reason(body: &mut &[u8]) -> Result<String, String> {
    let length = count(body, "bytes of a reason", 0..=MAX_REASON)?;
    let (words, rest) = body.split_at_checked(length).ok_or("the handshake message is too short")?;
    *body = rest;
    // The text is cut, because each byte that is not UTF-8 becomes three bytes.
    Ok(cut(&String::from_utf8_lossy(words), MAX_REASON).to_owned())
}

/// Returns the beginning of a text, in whole characters and at most `most` bytes long.
fn cut(why: &str, most: usize) -> &str {
    let mut end = why.len().min(most);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    &why[..end]
}

fn encode_addresses(bytes: &mut Vec<u8>, addresses: &[Address]) {
    bytes.extend((addresses.len() as u32).to_le_bytes());
    for Address { device, link_layer, gid, prefix, lid, mtu } in addresses {
        bytes.push(u8::from(*link_layer == LinkLayer::InfiniBand));
        bytes.extend(gid.0);
        bytes.push(prefix.unwrap_or(UNKNOWN));
        bytes.extend(lid.to_le_bytes());
        bytes.push(mtu.code());
        let name = &device.as_bytes()[..device.len().min(MAX_NAME)];
        bytes.push(name.len() as u8);
        bytes.extend(name);
    }
}

fn decode_addresses(body: &mut &[u8], allowed: RangeInclusive<usize>) -> Result<Vec<Address>, String> {
    let count = count(body, "addresses", allowed)?;
    // The list grows as the bytes arrive, so that a count alone allocates no memory.
    let mut addresses = Vec::new();
    for _ in 0..count {
        let link_layer = match take(body)? {
            [0] => LinkLayer::Ethernet,
            [1] => LinkLayer::InfiniBand,
            [other] => return Err(format!("unknown link layer {other}")),
        };
        let gid = Gid(take(body)?);
        let prefix = match take(body)? {
            [UNKNOWN] => None,
            [bits @ 0..=128] => Some(bits),
            [bits] => return Err(format!("a subnet prefix has {bits} bits; expected at most 128")),
        };
        let lid = u16::from_le_bytes(take(body)?);
        let [code] = take(body)?;
        let mtu = Mtu::from_code(code.into()).ok_or_else(|| format!("unknown MTU code {code}"))?;
        let [length] = take(body)?;
        let length = usize::from(length);
        if length > MAX_NAME || length > body.len() {
            return Err(format!(
                "a device's name has {length} bytes, more than allowed or than the message has"
            ));
        }
        let (name, rest) = body.split_at(length);
        *body = rest;
        // The name goes into logs.
        if !name.iter().all(u8::is_ascii_graphic) {
            return Err("a device's name that is not printable ASCII".into());
        }
        let device = String::from_utf8_lossy(name).into_owned();
        addresses.push(Address { device, link_layer, gid, prefix, lid, mtu });
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PortId;
    use proptest::prelude::*;

    fn address(name: &str) -> Address {
        Address {
            device: name.into(),
            link_layer: LinkLayer::Ethernet,
            gid: Gid([7; 16]),
            prefix: Some(24),
            lid: 0,
            mtu: Mtu::from_code(5).unwrap(),
        }
    }

    fn links() -> Links {
        let end = LinkEnd { nic: 1, number: 0xff_ffff, first_packet: 17, keys: vec![u32::MAX, 0] };
        Links {
            address: 0x7f00_0000_0000,
            bytes: 1 << 30,
            nics: vec![address("mlx5_0"), Address { prefix: None, ..address("mlx5_1") }],
            apart: false,
            ends: vec![end.clone(), LinkEnd { nic: 0, keys: Vec::new(), ..end }],
        }
    }

    fn pair_end() -> LinkEnd {
        LinkEnd { nic: 0, number: 17, first_packet: 0xff_ffff, keys: Vec::new() }
    }

    fn joined(hub: u16) -> LinkPorts {
        LinkPorts { joiner: PortId(1), hub: PortId(hub) }
    }

    fn all() -> Vec<Message> {
        let infiniband = Address { link_layer: LinkLayer::InfiniBand, lid: 9, ..address("ib0") };
        vec![
            Message::hello([7; 16], 1 << 40, vec![joined(0), joined(300)], vec![address("mlx5_0")]),
            Message::Ports { send_bytes: 12, ports: vec![address("rxe0"), infiniband] },
            Message::Links(links()),
            Message::Links(Links { apart: true, ..links() }),
            Message::Ready,
            Message::Trial { nics: vec![address("mlx5_0")], ends: vec![(300, pair_end()), (0, pair_end())] },
            Message::Tried(vec![Ok(pair_end()), Err("no route".into())]),
            Message::Unreached(vec![7, 300]),
            Message::Unreached(Vec::new()),
            Message::Refused("no such token".into()),
        ]
    }

    #[test]
    fn messages_survive_the_wire() {
        for message in all() {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn the_largest_hub_fits_into_a_message() {
        let name = "x".repeat(MAX_NAME);
        let ports = Message::Ports { send_bytes: 0, ports: vec![address(&name); MAX_PORTS] };
        assert!(ports.encode().len() <= MAX_BYTES);
        let end = LinkEnd { nic: 0, number: 0, first_packet: 0, keys: vec![7; MAX_RANGES / MAX_PORTS] };
        let ends = vec![end; MAX_PORTS];
        let links = Message::Links(Links { nics: vec![address(&name); MAX_NICS], ends, ..links() });
        assert!(links.encode().len() <= MAX_BYTES);
        assert_eq!(Message::decode(&links.encode()), Ok(links));
        let tried = Message::Tried(vec![Err("x".repeat(MAX_REASON)); MAX_TRIALS]);
        assert!(tried.encode().len() <= MAX_BYTES);
        assert_eq!(Message::decode(&tried.encode()), Ok(tried));
    }

    #[test]
    fn a_message_that_is_cut_or_longer_is_no_message() {
        for message in all() {
            let bytes = message.encode();
            if !matches!(message, Message::Refused(_)) {
                assert!(Message::decode(&[bytes.as_slice(), &[0]].concat()).is_err(), "{message:?}");
                for end in 0..bytes.len() {
                    assert!(Message::decode(&bytes[..end]).is_err(), "{message:?} of {end} bytes");
                }
            }
        }
    }

    #[test]
    fn a_refusal_is_no_longer_than_the_longest_when_it_is_no_text() {
        let bytes = [MAGIC.as_slice(), &[4], &[0xff; 3 * MAX_WORDS]].concat();
        let message = Message::decode(&bytes).unwrap();
        let Message::Refused(why) = &message else { panic!("{message:?}") };
        assert_eq!(why.len(), MAX_WORDS - MAX_WORDS % "\u{fffd}".len());
        assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(&message));
        let long = Message::Refused("é".repeat(MAX_WORDS) + "x");
        let expected = Message::Refused("é".repeat(MAX_WORDS / 2));
        assert_eq!(Message::decode(&long.encode()), Ok(expected), "characters are not cut in two");
    }

    #[test]
    fn another_version_is_named() {
        let error = Message::decode(b"phubrdm9........").unwrap_err();
        assert!(error.contains("phubrdm6") && error.contains("phubrdm9"), "{error}");
    }

    #[test]
    fn what_no_correct_peer_sends_is_refused() {
        let wrong = |change: &dyn Fn(&mut Links)| {
            let mut links = links();
            change(&mut links);
            Message::decode(&Message::Links(links).encode()).unwrap_err()
        };
        assert!(wrong(&|links| links.ends[0].number = 1 << 24).contains("24 bits"));
        assert!(wrong(&|links| links.address = u64::MAX).contains("does not fit into memory"));
        let too_many = wrong(&|links| links.ends[1].keys = vec![7; MAX_RANGES - 1]);
        assert!(too_many.contains("the message has 65535 keys; expected 0 to 65534"), "{too_many}");
        assert!(wrong(&|links| links.ends.clear()).contains("the message has 0 links; expected 1 to 4096"));
        assert!(wrong(&|links| links.nics[0].prefix = Some(129)).contains("129 bits"));
        assert!(wrong(&|links| links.nics[0].device = "a\nb".into()).contains("printable"));
        // A count without the bytes that it announces must not allocate memory.
        let mut bytes = MAGIC.to_vec();
        bytes.push(1);
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(4096u32.to_le_bytes());
        assert!(Message::decode(&bytes).unwrap_err().contains("too short"));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(
            which in 0..all().len(),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            tail in proptest::collection::vec(any::<u8>(), 0..32),
        ) {
            let mut bytes = all()[which].encode();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.extend(tail);
            // A decoded message keeps its meaning when it is encoded again.
            if let Ok(message) = Message::decode(&bytes) {
                prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
            }
        }
    }
}
