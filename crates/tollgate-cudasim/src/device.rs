//! The devices: what they are called, what they say they can do, which of them a program sees.

use crate::code::Code;
use crate::setup::Setup;

#[derive(Debug)]
pub(crate) struct Device {
    /// Among all there are, seen or not. Names and numbers of the device follow from it.
    index: u32,
    instance: bool,
    pub(crate) memory: u64,
    /// Of it, in use.
    pub(crate) used: u64,
    pub(crate) primary: u64,
    pub(crate) lost: Option<Code>,
    pub(crate) default_pool: u64,
    pub(crate) pool: u64,
    /// Where its next memory begins.
    pub(crate) next_address: u64,
    /// Pieces of work that run.
    pub(crate) running: usize,
}

/// Device memory has addresses that no host has: whoever reads there without the driver faults at once.
const FIRST_ADDRESS: u64 = 0x000d_0000_0000_0000;
const ADDRESSES: u64 = 1 << 44;

impl Device {
    fn new(index: u32, instance: bool, memory: u64) -> Self {
        Device {
            index,
            instance,
            memory,
            used: 0,
            primary: 0,
            lost: None,
            default_pool: 0,
            pool: 0,
            next_address: Device::first_address(index),
            running: 0,
        }
    }

    /// Those that the program sees, in its order.
    pub(crate) fn all(setup: &Setup, visible: Option<&str>) -> Vec<Device> {
        let count = setup.devices;
        let new = |index: usize| {
            let instance = index + setup.instances >= count;
            Device::new(u32::try_from(index).unwrap_or(u32::MAX), instance, setup.memory)
        };
        let all: Vec<Device> = (0..count).map(new).collect();
        let Some(visible) = visible else { return all };
        let mut order: Vec<usize> = Vec::new();
        for name in visible.split(',').map(str::trim) {
            let index = match name.parse::<usize>() {
                Ok(index) => (index < count).then_some(index),
                Err(_) => all.iter().position(|it| it.is_called(name)),
            };
            // what comes after a name of no device is not seen either
            let Some(index) = index.filter(|it| !order.contains(it)) else { break };
            order.push(index);
        }
        order.into_iter().map(new).collect()
    }

    pub(crate) fn name(&self) -> String {
        let what = if self.instance { "Simulated Instance" } else { "Simulated Device" };
        format!("{what} {}", self.index)
    }

    /// Of the whole device, also of one that is divided.
    pub(crate) fn uuid(&self) -> [u8; 16] {
        let mut uuid = *b"tollgate-sim\0\0\0\0";
        uuid[12..].copy_from_slice(&self.index.to_be_bytes());
        uuid
    }

    /// Of the instance, where it is one.
    pub(crate) fn own_uuid(&self) -> [u8; 16] {
        let mut uuid = self.uuid();
        uuid[8] = if self.instance { b'M' } else { uuid[8] };
        uuid
    }

    /// By its UUID as the tools write it, or the first part of that.
    fn is_called(&self, name: &str) -> bool {
        let hex: Vec<String> = self.own_uuid().iter().map(|it| format!("{it:02x}")).collect();
        let hex = hex.concat();
        let prefix = if self.instance { "MIG-" } else { "GPU-" };
        let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        let own = format!("{prefix}{}", parts.join("-"));
        name.len() > prefix.len() && own.starts_with(name)
    }

    fn first_address(index: u32) -> u64 {
        FIRST_ADDRESS + u64::from(index) * ADDRESSES
    }

    /// Whether its memory may be there, now, before or later.
    pub(crate) fn has_address(&self, address: u64) -> bool {
        let first = Device::first_address(self.index);
        (first..first + ADDRESSES).contains(&address)
    }

    fn bus(&self) -> u32 {
        self.index + 1
    }

    pub(crate) fn pci_id(&self) -> String {
        format!("0000:{:02X}:00.0", self.bus())
    }

    /// What the driver's attribute with this number is.
    pub(crate) fn attribute(&self, attribute: i32) -> Result<i32, Code> {
        Ok(match attribute {
            // threads and sizes of a block, sizes of a grid
            1..=3 => 1024,
            4 => 64,
            5 => i32::MAX,
            6 | 7 => 65_535,
            // shared and constant memory, a warp, pitch, registers
            8 => 48 << 10,
            9 => 64 << 10,
            10 => WARP,
            11 => i32::MAX,
            12 => 64 << 10,
            // clocks, in kHz
            13 => 1_410_000,
            36 => 1_215_000,
            14 => 512,
            16 => MULTIPROCESSORS,
            // overlap of copies, mapped host memory, concurrent kernels, one address space
            15 | 19 | 31 | 41 => 1,
            33 => self.bus().cast_signed(),
            37 => 5120,
            38 => 40 << 20,
            39 => THREADS,
            40 => 2,
            COMPUTE_MAJOR => 8,
            COMPUTE_MINOR => 0,
            // stream priorities, caches
            78..=80 => 1,
            81 => SHARED_BYTES,
            82 => 64 << 10,
            // managed memory, concurrent managed access, cooperative launch, host registration
            83 | 89 | 95 | 99 => 1,
            97 => 163 << 10,
            106 => 32,
            // memory pools, with no handles to share
            115 => 1,
            // what it cannot do, or does not have
            _ if (1..150).contains(&attribute) => 0,
            _ => return Err(Code::INVALID_VALUE),
        })
    }
}

pub(crate) const WARP: i32 = 32;
pub(crate) const MULTIPROCESSORS: i32 = 8;
/// On a multiprocessor.
pub(crate) const THREADS: i32 = 2048;
/// On a multiprocessor.
pub(crate) const SHARED_BYTES: i32 = 164 << 10;
const COMPUTE_MAJOR: i32 = 75;
const COMPUTE_MINOR: i32 = 76;

/// The numbers of stream priorities: the first is the least urgent.
pub(crate) const PRIORITIES: (i32, i32) = (0, -5);
