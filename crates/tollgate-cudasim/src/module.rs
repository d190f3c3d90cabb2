//! Modules: what their PTX declares becomes functions and memory.

use crate::bytes::Memory;
use crate::code::Code;
use crate::engine::Work;
use crate::kernel::{self, Launch};
use crate::memory::{Kind, Use};
use crate::misuse::MisuseKind;
use crate::order::{Touch, Uses};
use crate::ptx::{Entry, Ptx};
use crate::raw::Arguments;
use crate::state::{Call, State};
use std::collections::BTreeMap;

#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) context: u64,
    functions: BTreeMap<String, u64>,
    variables: BTreeMap<String, (u64, usize)>,
    launches: Uses,
}

#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) context: u64,
    pub(crate) module: u64,
    entry: Entry,
    pub(crate) attributes: BTreeMap<i32, i32>,
}

/// Which threads a kernel is launched with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
}

/// Of a kernel that may touch its module, which goes as a whole.
const LAUNCH: Touch = Touch { start: 0, end: 1, write: false };

impl Call {
    pub(crate) fn load_module(&mut self, source: &str) -> Result<u64, Code> {
        let context = self.current()?;
        let ptx = Ptx::parse(source)?;
        let number = self.number();
        let mut module = Module {
            context,
            functions: BTreeMap::new(),
            variables: BTreeMap::new(),
            launches: Uses::default(),
        };
        for variable in ptx.variables {
            let bytes = variable.bytes.len();
            let address = self.allocate(bytes.max(1), Kind::Global)?;
            if let Some((memory, offset)) = self.memory_at(address) {
                Memory::write(&memory, offset, &variable.bytes)?;
            }
            module.variables.insert(variable.name, (address, bytes));
        }
        for entry in ptx.entries {
            let function = self.number();
            module.functions.insert(entry.name.clone(), function);
            let attributes = BTreeMap::new();
            self.functions
                .insert(function, Function { context, module: number, entry, attributes });
        }
        self.modules.insert(number, module);
        Ok(number)
    }

    fn module(&mut self, handle: usize) -> Result<&mut Module, Code> {
        self.current()?;
        if !self.modules.contains_key(&(handle as u64)) {
            let detail = format!("{handle:#x} is no module, or was unloaded");
            return Err(self.found(MisuseKind::BadHandle, Code::INVALID_HANDLE, detail));
        }
        self.modules.get_mut(&(handle as u64)).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn unload_module(&mut self, handle: usize) -> Result<(), Code> {
        self.module(handle)?;
        let number = handle as u64;
        let whole = Touch { write: true, ..LAUNCH };
        let seen = |stream, position| self.timeline.is_seen(stream, position);
        let user = self.modules.get(&number).and_then(|it| it.launches.conflict(whole, seen));
        if let Some(stream) = user {
            let detail = format!(
                "module {handle:#x} is unloaded, and nobody has seen that stream {stream:#x} is done with it"
            );
            return Err(self.found(MisuseKind::Unfinished, Code::ILLEGAL_STATE, detail));
        }
        if let Some(module) = self.modules.remove(&number) {
            for (address, _) in module.variables.into_values() {
                self.forget_block(address);
            }
        }
        self.functions.retain(|_, it| it.module != number);
        Ok(())
    }

    pub(crate) fn function_of(&mut self, module: usize, name: &str) -> Result<u64, Code> {
        self.module(module)?.functions.get(name).copied().ok_or(Code::NOT_FOUND)
    }

    /// Address and size.
    pub(crate) fn variable_of(&mut self, module: usize, name: &str) -> Result<(u64, usize), Code> {
        self.module(module)?.variables.get(name).copied().ok_or(Code::NOT_FOUND)
    }

    pub(crate) fn function(&mut self, handle: usize) -> Result<&mut Function, Code> {
        self.current()?;
        if !self.functions.contains_key(&(handle as u64)) {
            let detail = format!("{handle:#x} is no function, or its module was unloaded");
            return Err(self.found(MisuseKind::BadHandle, Code::INVALID_HANDLE, detail));
        }
        self.functions.get_mut(&(handle as u64)).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn launch(
        &mut self,
        function: usize,
        shape: Shape,
        stream: usize,
        arguments: &Arguments,
    ) -> Result<(), Code> {
        let current = self.current()?;
        let number = self.stream(stream)?;
        let function = self.function(function)?;
        let (context, module) = (function.context, function.module);
        let entry = function.entry.clone();
        if context != current {
            let detail = format!(
                "kernel {:?} is of context {context:#x}, and {current:#x} is current",
                entry.name
            );
            return Err(self.found(MisuseKind::WrongContext, Code::INVALID_HANDLE, detail));
        }
        let Shape { grid, block, shared_bytes } = shape;
        let threads = block.iter().map(|&it| u64::from(it)).product::<u64>();
        if grid.contains(&0) || threads == 0 || threads > 1024 {
            return Err(Code::INVALID_VALUE);
        }
        let Some(kernel) = kernel::registered(&entry.name) else {
            eprintln!("simulated CUDA driver: nobody has said what kernel {:?} does", entry.name);
            return Err(Code::NOT_SUPPORTED);
        };
        let mut copied = Vec::new();
        for (at, &bytes) in entry.parameters.iter().enumerate() {
            copied.push(arguments.copy(at, bytes)?);
        }
        let uses = self.uses_of(&copied)?;
        let launch = Launch {
            kernel,
            session: self.session,
            name: entry.name,
            grid,
            block,
            shared_bytes,
            arguments: copied,
        };
        let position = self.submit(number, Work::Launch(launch), &uses)?;
        let State { modules, timeline, .. } = &mut **self;
        if let Some(module) = modules.get_mut(&module) {
            let seen = |stream, position| timeline.is_seen(stream, position);
            module.launches.add(number, position, LAUNCH, seen);
        }
        Ok(())
    }

    /// Memory that the arguments have addresses of. What a kernel does with it is not known; it counts as being read.
    fn uses_of(&mut self, arguments: &[Vec<u8>]) -> Result<Vec<Use>, Code> {
        let words = arguments.iter().flat_map(|it| it.chunks_exact(8));
        let addresses = words.map(bytemuck::pod_read_unaligned::<u64>);
        let mut uses = Vec::new();
        for address in addresses {
            if self.is_freed(address) {
                let detail = format!("a kernel is given {address:#x}, which was freed");
                return Err(self.found(MisuseKind::BadAddress, Code::INVALID_VALUE, detail));
            }
            uses.extend(self.whole_block(address));
        }
        Ok(uses)
    }
}
