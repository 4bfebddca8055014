//! The newest version of a block of bytes, such as a network's weights: one writer, any number of readers, nobody
//! waits and nobody gets a mixture of two versions.
//!
//! Two pages are written in turn, each with the version that it holds. A reader copies the page of the newest version
//! and then looks whether it was written meanwhile, which takes two further versions; then it begins anew. A writer
//! that dies in the middle of a page leaves the other one, which stays the newest. (A sequence lock after Boehm, "Can
//! seqlocks get along with programming language memory models?", 2012: the data are atomic words.)

use crate::shm::Error;
use crate::shm::memory::{Mapped, Memory, Site, Word};
use crate::shm::segment::{Header, Kind, Segment, Shared, Users, header_length};

const LINE: usize = 128;
const PAGE: usize = 4096;
/// What a page holds while it is written.
const BEING_WRITTEN: u64 = 0;

/// Where the words lie.
#[derive(Clone, Copy, Debug)]
pub struct Pages {
    pub version: Word,
    pub held: [Word; 2],
    pub first: [Word; 2],
    /// Words of a page.
    pub words: usize,
}

impl Pages {
    fn word(&self, page: usize, i: usize) -> Word {
        Word(self.first[page].0 + 8 * i)
    }

    /// Every word.
    pub fn all_words(&self) -> Vec<Word> {
        let data = (0..2).flat_map(|page| (0..self.words).map(move |i| self.word(page, i)));
        [self.version, self.held[0], self.held[1]].into_iter().chain(data).collect()
    }

    /// Writes the next version; only one writer may. Its number.
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

    /// Copies the newest version, if it is newer than `newer_than`. What is copied before that is sure may be a mixture.
    pub fn read(&self, memory: &impl Memory, newer_than: u64, mut copy: impl FnMut(usize, u64)) -> Reading {
        let version = memory.load(self.version, Site::Newest);
        if version <= newer_than {
            return Reading::Nothing;
        }
        let page = (version % 2) as usize;
        for i in 0..self.words {
            copy(i, memory.load(self.word(page, i), Site::Plain));
        }
        memory.fence(Site::Recheck);
        if memory.load(self.held[page], Site::Marked) == version {
            Reading::Version(version)
        } else if memory.load(self.version, Site::Newest) > version {
            Reading::Overtaken
        } else {
            Reading::Damaged
        }
    }
}

/// What came of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    Version(u64),
    /// Nothing is newer.
    Nothing,
    /// The page was written meanwhile: there is something newer, read that.
    Overtaken,
    /// The page was written, but nothing newer is there: no writer does that.
    Damaged,
}

/// A block of bytes in shared memory.
pub struct Bulletin {
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

impl Bulletin {
    /// A new one; who makes it writes.
    pub fn create(nbytes: usize) -> Result<Bulletin, Error> {
        let sizes = layout(nbytes).filter(|_| nbytes > 0);
        let Some((pages, length)) = sizes else {
            return Err(Error::Invalid(format!(
                "expected a number of bytes from 1 on that memory can hold, got {nbytes}"
            )));
        };
        let header = header(nbytes, length);
        let segment = Segment::create(&header, &Shared::Anonymous)?;
        Ok(Bulletin::over(segment, pages, nbytes, true))
    }

    /// To read what another process, or this one, writes.
    pub fn attach(name: &str) -> Result<Bulletin, Error> {
        let (segment, found) = Segment::attach(Kind::Bulletin, name)?;
        let nbytes = found.parameters[0];
        let sizes = usize::try_from(nbytes).ok().filter(|&n| n < isize::MAX as usize / 4).and_then(layout);
        match sizes {
            Some((pages, length)) if nbytes > 0 && header(nbytes as usize, length) == found => {
                Ok(Bulletin::over(segment, pages, nbytes as usize, false))
            }
            _ => Err(Error::Foreign(format!("cannot attach to shared memory {name:?}: its header is damaged"))),
        }
    }

    fn over(segment: Segment, pages: Pages, nbytes: usize, is_writer: bool) -> Bulletin {
        // SAFETY: the segment lives as long as the memory does, in the same struct; it is touched in no other way.
        let memory = unsafe { Mapped::new(segment.base(), segment.len(), segment.len(), 0) };
        Bulletin { memory, pages, nbytes, is_writer, segment }
    }

    pub fn name(&self) -> &str {
        self.segment.name().expect("bulletins are shared")
    }

    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// The newest version; 0 if there is none yet.
    pub fn version(&self) -> u64 {
        self.memory.load(self.pages.version, Site::Newest)
    }

    /// Makes `data` the newest version; its number. Only the process that made the bulletin may, one thread at a time.
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

    /// Copies the newest version into `out`, if there is one newer than `newer_than`; its number.
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
                Reading::Version(version) => return Ok(Some(version)),
                Reading::Nothing => return Ok(None),
                Reading::Overtaken => {}
                Reading::Damaged => {
                    let name = self.name();
                    return Err(Error::Foreign(format!("shared memory {name:?} is damaged: make new weights")));
                }
            }
        }
    }

    /// Takes the name away: nobody can attach any more.
    pub fn unlink(&self) {
        self.segment.unlink();
    }
}

fn header(nbytes: usize, length: usize) -> Header {
    Header {
        kind: Kind::Bulletin,
        length: length as u64,
        parameters: [nbytes as u64, 0, 0, 0, 0, 0],
        users: Users::default(),
        schema: String::new(),
    }
}
