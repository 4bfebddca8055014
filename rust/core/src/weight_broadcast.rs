//! Weight broadcast: the newest version of a block of bytes, such as a network's weights, from one writer to any number
//! of readers. Neither side waits, and no reader gets a mixture of two versions.
//!
//! A sequence lock over two pages (H. Boehm, "Can seqlocks get along with programming language memory models?", 2012:
//! the data are atomic words). The writer fills the pages in turn, each marked with the version that it holds. A reader
//! copies the page of the newest version and then checks that it was not written meanwhile; that takes two further
//! versions, and then it starts again. A writer that dies in the middle of a page leaves the other one, which stays the
//! newest.

use crate::shm::Error;
use crate::shm::memory::{Mapped, Memory, Site, Word};
use crate::shm::segment::{Header, Kind, Segment, Shared, Users, header_length};

const LINE: usize = 128;
const PAGE: usize = 4096;
/// The version of a page that is being written.
const BEING_WRITTEN: u64 = 0;

/// The words of the two pages.
#[derive(Clone, Copy, Debug)]
pub struct Pages {
    /// The newest version, 0 before the first. Written by the writer alone, after the page is complete; never
    /// decreases.
    pub version: Word,
    /// The version that each page holds, or [`BEING_WRITTEN`]. Version `v` goes to page `v % 2`.
    pub held: [Word; 2],
    /// The first data word of each page; the others follow.
    pub first: [Word; 2],
    /// Words of a page.
    pub words: usize,
}

impl Pages {
    fn word(&self, page: usize, i: usize) -> Word {
        Word(self.first[page].0 + 8 * i)
    }

    /// All words of both pages.
    pub fn all_words(&self) -> Vec<Word> {
        let data = (0..2).flat_map(|page| (0..self.words).map(move |i| self.word(page, i)));
        [self.version, self.held[0], self.held[1]].into_iter().chain(data).collect()
    }

    /// Writes the next version, with `data` giving each word. Only one writer may. Returns the version.
    pub fn publish(&self, memory: &impl Memory, data: impl Fn(usize) -> u64) -> u64 {
        let version = memory.load(self.version, Site::Plain).wrapping_add(1);
        let page = (version % 2) as usize;
        memory.store(self.held[page], BEING_WRITTEN, Site::Mark);
        memory.fence(Site::Begin);
        for i in 0..self.words {
            memory.store(self.word(page, i), data(i), Site::Plain);
        }
        memory.store(self.held[page], version, Site::Plain);
        memory.store(self.version, version, Site::Finish);
        version
    }

    /// Copies the newest version word by word, if it is newer than `newer_than`. Unless the result is
    /// [`ReadOutcome::Version`], what was copied may be a mixture.
    pub fn read(&self, memory: &impl Memory, newer_than: u64, mut copy: impl FnMut(usize, u64)) -> ReadOutcome {
        let version = memory.load(self.version, Site::Newest);
        if version <= newer_than {
            return ReadOutcome::NotNewer;
        }
        let page = (version % 2) as usize;
        for i in 0..self.words {
            copy(i, memory.load(self.word(page, i), Site::Plain));
        }
        memory.fence(Site::Recheck);
        if memory.load(self.held[page], Site::Marked) == version {
            ReadOutcome::Version(version)
        } else if memory.load(self.version, Site::Newest) > version {
            ReadOutcome::Overtaken
        } else {
            ReadOutcome::Damaged
        }
    }
}

/// The result of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// This version was copied.
    Version(u64),
    /// No version is newer than the one given.
    NotNewer,
    /// The page was written meanwhile: a newer version exists, to be read instead.
    Overtaken,
    /// The page was written, but no newer version exists: no writer does that, so a stray write has hit the words.
    Damaged,
}

/// A block of bytes in shared memory.
pub struct WeightBroadcast {
    memory: Mapped,
    pages: Pages,
    nbytes: usize,
    is_writer: bool,
    segment: Segment,
}

fn layout(nbytes: usize) -> Option<(Pages, usize)> {
    let start = header_length("");
    let words = nbytes.div_ceil(8);
    let first = start + 4 * LINE;
    let second = first.checked_add((words * 8).checked_next_multiple_of(LINE)?)?;
    let length = second.checked_add(words * 8)?.checked_next_multiple_of(PAGE)?;
    let word = |i| Word(start + LINE * i);
    let pages = Pages { version: word(0), held: [word(1), word(2)], first: [Word(first), Word(second)], words };
    (length <= isize::MAX as usize).then_some((pages, length))
}

impl WeightBroadcast {
    /// Creates a broadcast of blocks of `nbytes` bytes; this process writes.
    pub fn create(nbytes: usize) -> Result<WeightBroadcast, Error> {
        let sizes = layout(nbytes).filter(|_| nbytes > 0);
        let Some((pages, length)) = sizes else {
            return Err(Error::Invalid(format!(
                "expected a number of bytes from 1 on that memory can hold, got {nbytes}"
            )));
        };
        let header = header(nbytes, length);
        let segment = Segment::create(&header, &Shared::Anonymous)?;
        Ok(WeightBroadcast::over(segment, pages, nbytes, true))
    }

    /// Opens the broadcast of this name, to read.
    pub fn attach(name: &str) -> Result<WeightBroadcast, Error> {
        let (segment, found) = Segment::attach(Kind::Weights, name)?;
        let nbytes = found.parameters[0];
        let sizes = usize::try_from(nbytes).ok().filter(|&n| n < isize::MAX as usize / 4).and_then(layout);
        match sizes {
            Some((pages, length)) if nbytes > 0 && header(nbytes as usize, length) == found => {
                Ok(WeightBroadcast::over(segment, pages, nbytes as usize, false))
            }
            _ => Err(Error::Foreign(format!("cannot attach to shared memory {name:?}: its header is damaged"))),
        }
    }

    fn over(segment: Segment, pages: Pages, nbytes: usize, is_writer: bool) -> WeightBroadcast {
        // SAFETY: `WeightBroadcast` keeps the segment as long as the memory, and its bytes are touched in no other way.
        let memory = unsafe { Mapped::new(segment.base(), segment.len(), segment.len(), 0) };
        WeightBroadcast { memory, pages, nbytes, is_writer, segment }
    }

    pub fn name(&self) -> &str {
        self.segment.name().expect("broadcasts are shared")
    }

    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// The newest version; 0 if there is none yet.
    pub fn version(&self) -> u64 {
        self.memory.load(self.pages.version, Site::Newest)
    }

    /// Makes `data` the newest version. Returns its number. Only the process that made the broadcast may, one thread at
    /// a time.
    pub fn publish(&mut self, data: &[u8]) -> Result<u64, Error> {
        if !self.is_writer || !self.segment.is_own() {
            return Err(Error::NotOwner("only the process that made these weights can publish them"));
        }
        if data.len() != self.nbytes {
            return Err(Error::Invalid(format!("expected {} bytes, got {}", self.nbytes, data.len())));
        }
        Ok(self.pages.publish(&self.memory, |i| {
            let rest = &data[8 * i..];
            match rest.first_chunk() {
                Some(&word) => u64::from_ne_bytes(word),
                None => {
                    let mut word = [0; 8];
                    word[..rest.len()].copy_from_slice(rest);
                    u64::from_ne_bytes(word)
                }
            }
        }))
    }

    /// Copies the newest version into `out`, if it is newer than `newer_than`. Returns its number.
    pub fn read(&self, out: &mut [u8], newer_than: u64) -> Result<Option<u64>, Error> {
        if out.len() != self.nbytes {
            return Err(Error::Invalid(format!("expected {} bytes to read into, got {}", self.nbytes, out.len())));
        }
        loop {
            let reading = self.pages.read(&self.memory, newer_than, |i, word| {
                let rest = &mut out[8 * i..];
                let count = rest.len().min(8);
                rest[..count].copy_from_slice(&word.to_ne_bytes()[..count]);
            });
            match reading {
                ReadOutcome::Version(version) => return Ok(Some(version)),
                ReadOutcome::NotNewer => return Ok(None),
                ReadOutcome::Overtaken => {}
                ReadOutcome::Damaged => {
                    let name = self.name();
                    return Err(Error::Foreign(format!("shared memory {name:?} is damaged: make new weights")));
                }
            }
        }
    }

    /// Removes the name: no process can attach any more.
    pub fn unlink(&self) {
        self.segment.unlink();
    }
}

fn header(nbytes: usize, length: usize) -> Header {
    Header {
        kind: Kind::Weights,
        length: length as u64,
        parameters: [nbytes as u64, 0, 0, 0, 0, 0],
        users: Users::default(),
        schema: String::new(),
    }
}
