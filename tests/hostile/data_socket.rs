//! Garbage on the socket of the data path. Its sender loses the connection, a job continues with the right
//! bits, and no descriptor is left open. The file has one test, because it counts the descriptors of the
//! process.

use std::os::fd::{AsFd, OwnedFd};

use fabric::conformance::{Watchdog, alone};
use fabric::shm::fuzzing;
use fabric::{LinkPorts, PortId};
use hub_tests::program::until;
use hub_tests::training::Training;
use hub_tests::usage::{holds, holds_at_rest};
use hub_tests::{config, hub, join_by_hand, join_request, leave_by_hand, push_all, ready_all, shm_address};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::IoSlice;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

fn connect(address: &str) -> OwnedFd {
    let socket =
        net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    net::connect(&socket, &SocketAddrUnix::new_abstract_name(address.as_bytes()).unwrap()).unwrap();
    socket
}

/// Reads the hub's reply.
fn read_reply(socket: &OwnedFd) -> String {
    let mut answer = [0; 1024];
    let (bytes, _) = net::recv(socket, &mut answer, net::RecvFlags::empty()).unwrap();
    String::from_utf8_lossy(&answer[..bytes]).into_owned()
}

/// Connects, and sends these bytes and descriptors. The hub may close the connection before that.
fn send(address: &str, bytes: &[u8], fds: &[OwnedFd]) -> OwnedFd {
    let socket = connect(address);
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = net::SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    if !fds.is_empty() {
        assert!(control.push(net::SendAncillaryMessage::ScmRights(&fds)));
    }
    let _ = net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, net::SendFlags::NOSIGNAL);
    socket
}

fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// Returns the hello of a worker with one port, which has a link to each of these cores.
fn hello(token: [u8; 16], send_bytes: u64, cores: &[u32]) -> Vec<u8> {
    let link = |&core: &u32| LinkPorts { joiner: PortId(0), hub: PortId(core as u16) };
    fuzzing::hello(token, send_bytes, 1, cores.iter().map(link).collect())
}

#[test]
fn garbage_on_the_data_path_costs_its_sender() {
    alone(|| {
        let _watchdog = Watchdog::start();
        let hub = hub(2);
        let before = holds_at_rest(&hub.address().to_string(), std::process::id());
        let mut steady = ready_all(2, |rank| config(&hub, "steady", rank, 2));
        let reply = join_by_hand(&hub, "job", &join_request(0, 2));
        let address = shm_address(&reply);
        let token = authority::unhex(&reply.token).unwrap();
        let plain = || vec![memfd(1 << 20, SealFlags::SHRINK), memfd(128, SealFlags::SHRINK)];
        for time in 0..20u8 {
            let garbage: Vec<u8> = (0..=255).map(|byte: u8| byte.wrapping_mul(time)).collect();
            send(address, &garbage, &[]);
            send(address, b"phubshm4", &plain());
            send(address, &hello([time; 16], 1 << 20, &reply.cores), &plain());
            send(address, &hello(token, u64::MAX, &reply.cores), &[memfd(1, SealFlags::SHRINK)]);
            let many: Vec<OwnedFd> = (0..64).map(|_| memfd(4096, SealFlags::SHRINK)).collect();
            send(address, &hello(token, 1 << 20, &reply.cores), &many);
            // The job continues meanwhile.
            steady.iter_mut().for_each(|session| push_all(session).unwrap());
            steady.iter_mut().for_each(|session| session.wait_all().unwrap());
        }
        // The token is right, but the memory of the window can still shrink.
        let told = send(
            address,
            &hello(token, 1 << 20, &reply.cores),
            &[memfd(1 << 20, SealFlags::GROW), memfd(128, SealFlags::SHRINK)],
        );
        let answer = read_reply(&told);
        assert!(answer.contains("lacks the seal against shrinking"), "{answer}");
        drop(told);
        assert_eq!(leave_by_hand(&hub, "job", &reply.token), 200);

        // There are more silent connections than places for them. They delay nobody for long, and each gets
        // an error.
        let silent: Vec<OwnedFd> = (0..200).map(|_| connect(address)).collect();
        let mut beside = ready_all(2, |rank| config(&hub, "beside", rank, 2));
        beside.iter_mut().for_each(|session| push_all(session).unwrap());
        beside.iter_mut().for_each(|session| session.wait_all().unwrap());
        beside.into_iter().for_each(|session| session.leave().unwrap());
        silent.iter().map(read_reply).for_each(|answer| {
            let told = ["said nothing for", "hung up"].iter().any(|words| answer.contains(words));
            assert!(told, "{answer}");
        });
        drop(silent);

        steady.into_iter().for_each(|session| session.leave().unwrap());
        Training::small("after").run(&hub.address().to_string());
        until("all descriptors are closed", || holds(std::process::id()).descriptors <= before.descriptors);
    });
}
