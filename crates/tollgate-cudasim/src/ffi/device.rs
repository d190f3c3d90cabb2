//! Devices and their primary contexts.

use crate::code::Code;
use crate::device::Device;
use crate::raw::{Out, Text};
use crate::state::Call;

api! {
    fn cuDeviceGetCount(out: Out<i32>) |it| it.answer(out, |it| Ok(it.devices.len()));
    fn cuDeviceGet(out: Out<i32>, ordinal: i32) |it| it.answer(out, |it| {
        it.device(ordinal)?;
        Ok(ordinal)
    });
    fn cuDeviceGetName(out: Out<u8>, length: i32, device: i32) |it| {
        let name = find(it, device)?.name();
        text(out, length, &name)
    };
    fn cuDeviceGetUuid(out: Out<[u8; 16]>, device: i32) |it| out.set(find(it, device)?.uuid());
    fn cuDeviceGetUuid_v2(out: Out<[u8; 16]>, device: i32) |it| out.set(find(it, device)?.own_uuid());
    fn cuDeviceTotalMem_v2(out: Out<usize>, device: i32) |it| {
        it.answer(out, |it| Ok(find(it, device)?.memory))
    };
    fn cuDeviceGetAttribute(out: Out<i32>, attribute: i32, device: i32) |it| {
        it.answer(out, |it| find(it, device)?.attribute(attribute))
    };
    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) |it| {
        it.answer(major, |it| find(it, device)?.attribute(75))?;
        it.answer(minor, |it| find(it, device)?.attribute(76))
    };
    fn cuDeviceGetPCIBusId(out: Out<u8>, length: i32, device: i32) |it| {
        let name = find(it, device)?.pci_id();
        text(out, length, &name)
    };
    fn cuDeviceGetByPCIBusId(out: Out<i32>, name: Text) |it| it.answer(out, |it| {
        let name = name.get()?;
        let at = it.devices.iter().position(|it| it.pci_id().eq_ignore_ascii_case(&name));
        at.ok_or(Code::INVALID_DEVICE)
    });
    fn cuDeviceCanAccessPeer(out: Out<i32>, device: i32, peer: i32) |it| it.answer(out, |it| {
        let (device, peer) = (it.device(device)?, it.device(peer)?);
        Ok(i32::from(device != peer))
    });

    fn cuDevicePrimaryCtxRetain(out: Out<usize>, device: i32) |it| {
        it.answer(out, |it| it.retain_primary(device))
    };
    fn cuDevicePrimaryCtxRelease_v2(device: i32) |it| it.release_primary(device);
    fn cuDevicePrimaryCtxReset_v2(device: i32) |it| it.reset_primary(device);
    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) |it| it.set_primary_flags(device, flags);
    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) |it| {
        let (has, alive) = it.primary_state(device)?;
        flags.set(has)?;
        active.set(i32::from(alive))
    };
}

fn find(it: &mut Call, device: i32) -> Result<&Device, Code> {
    let at = it.device(device)?;
    it.devices.get(at).ok_or(Code::INVALID_DEVICE)
}

/// As much of it as there is room for, and a NUL.
fn text(out: Out<u8>, length: i32, text: &str) -> Result<(), Code> {
    let room = usize::try_from(length).ok().and_then(|it| it.checked_sub(1));
    let room = room.ok_or(Code::INVALID_VALUE)?;
    let mut bytes = text.as_bytes()[..text.len().min(room)].to_vec();
    bytes.push(0);
    out.fill(&bytes)
}
