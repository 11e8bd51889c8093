//! Trees on their way in and out are tar streams: headers as GNU tar writes them, and as GNU, POSIX and old tars are
//! read. What is read is bounded, whatever the stream says.

/// Size of a block in bytes.
pub const BLOCK: usize = 512;

/// Longest name, link target or extended header that is read, in bytes.
pub const MAX_META: u64 = 1024 * 1024;

/// A point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Whole seconds since 1970, rounded down.
    pub seconds: i64,
    /// Nanoseconds after that, less than a second.
    pub nanos: u32,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file, whose content follows.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
}

/// What is written of an entry.
pub struct Entry<'a> {
    /// What it is.
    pub kind: Kind,
    /// Its name; a directory's ends with a slash.
    pub name: &'a [u8],
    /// Where a link leads.
    pub target: &'a [u8],
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of content.
    pub size: u64,
    /// Time of the last change, in seconds since 1970.
    pub mtime: i64,
}

impl Entry<'_> {
    /// Appends the header to `out`, after headers for a name or target that does not fit into it.
    pub fn write(&self, out: &mut Vec<u8>) {
        const NAME: usize = 100;
        if self.target.len() > NAME {
            long(b'K', self.target, out);
        }
        if self.name.len() > NAME {
            long(b'L', self.name, out);
        }
        let mut header = [0; BLOCK];
        header[..self.name.len().min(NAME)].copy_from_slice(&self.name[..self.name.len().min(NAME)]);
        number(&mut header[100..108], i64::from(self.mode & 0o7777));
        number(&mut header[108..116], i64::from(self.uid));
        number(&mut header[116..124], i64::from(self.gid));
        number(&mut header[124..136], i64::try_from(self.size).unwrap_or(i64::MAX));
        number(&mut header[136..148], self.mtime);
        header[156] = match self.kind {
            Kind::File => b'0',
            Kind::Directory => b'5',
            Kind::Symlink => b'2',
        };
        let target = &self.target[..self.target.len().min(NAME)];
        header[157..157 + target.len()].copy_from_slice(target);
        finish(&mut header, out);
    }
}

/// Bytes that fill the last block of `size` bytes of content.
pub fn padding(size: u64) -> usize {
    ((BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64) as usize
}

fn long(kind: u8, text: &[u8], out: &mut Vec<u8>) {
    let mut header = [0; BLOCK];
    header[..13].copy_from_slice(b"././@LongLink");
    let size = text.len() + 1;
    number(&mut header[124..136], size as i64);
    header[156] = kind;
    finish(&mut header, out);
    out.extend_from_slice(text);
    out.resize(out.len() + 1 + padding(size as u64), 0);
}

fn finish(header: &mut [u8; BLOCK], out: &mut Vec<u8>) {
    header[257..265].copy_from_slice(b"ustar  \0");
    let sum = checksum(header).0;
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.extend_from_slice(header);
}

/// Octal digits and a NUL, or GNU's binary form for what does not fit.
fn number(field: &mut [u8], value: i64) {
    let digits = field.len() - 1;
    if value >= 0 && (digits >= 21 || value < 1 << (3 * digits)) {
        field[..digits].copy_from_slice(format!("{value:0digits$o}").as_bytes());
        return;
    }
    let bytes = value.to_be_bytes();
    let fill = if value < 0 { 0xff } else { 0 };
    let skip = field.len().saturating_sub(bytes.len());
    field.fill(fill);
    let from = bytes.len().saturating_sub(field.len());
    field[skip..].copy_from_slice(&bytes[from..]);
    field[0] = if value < 0 { 0xff } else { field[0] | 0x80 };
}

/// Sum of the header's bytes with the field of the sum itself as spaces, unsigned and (some old tars) signed.
fn checksum(header: &[u8; BLOCK]) -> (u32, i32) {
    let bytes =
        || header.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { b' ' } else { *byte });
    (bytes().map(u32::from).sum(), bytes().map(|byte| i32::from(byte.cast_signed())).sum())
}

/// A header that has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The type's letter.
    pub kind: u8,
    /// Name, as far as the header holds it.
    pub name: Vec<u8>,
    /// Target of a link, as far as the header holds it.
    pub target: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Bytes of content.
    pub size: u64,
    /// Time of the last change, in seconds since 1970.
    pub mtime: i64,
}

impl Header {
    /// Reads a header. `None` for a block of zeros, which ends an archive.
    ///
    /// # Errors
    /// With what is wrong, in words that follow "the archive holds".
    pub fn read(block: &[u8; BLOCK]) -> Result<Option<Self>, &'static str> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let stated = parse(&block[148..156]).ok_or("a header without a check sum")?;
        let (unsigned, signed) = checksum(block);
        if stated != i64::from(unsigned) && stated != i64::from(signed) {
            return Err("a header with a wrong check sum");
        }
        let mut name = text(&block[..100]).to_vec();
        let is_posix = &block[257..263] == b"ustar\0";
        let prefix = text(&block[345..500]);
        if is_posix && !prefix.is_empty() {
            name = [prefix, b"/", &name].concat();
        }
        let size = parse(&block[124..136]).ok_or("a header whose size is no number")?;
        Ok(Some(Self {
            kind: block[156],
            name,
            target: text(&block[157..257]).to_vec(),
            mode: (parse(&block[100..108]).unwrap_or(0o644) & 0o7777) as u32,
            size: u64::try_from(size).map_err(|_| "a header whose size is negative")?,
            mtime: parse(&block[136..148]).unwrap_or(0),
        }))
    }
}

/// The bytes up to the first NUL.
pub fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn parse(field: &[u8]) -> Option<i64> {
    let first = *field.first()?;
    if first & 0x80 != 0 {
        // Binary, big endian, the first bit set as a mark and the second one being the sign.
        let negative = first & 0x40 != 0;
        let start: i128 = if negative { -1 } else { 0 };
        let mut value = start;
        for (at, byte) in field.iter().enumerate() {
            let byte = match (at, negative) {
                (0, false) => byte & 0x7f,
                _ => *byte,
            };
            value = value.checked_mul(256)?.checked_add(i128::from(byte))?;
        }
        return i64::try_from(value).ok();
    }
    let digits =
        field.iter().copied().skip_while(|byte| *byte == b' ').take_while(|byte| *byte != b' ' && *byte != 0);
    digits.into_iter().try_fold(0i64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    })
}

/// What an extended header overrides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// Name.
    pub name: Option<Vec<u8>>,
    /// Target of a link.
    pub target: Option<Vec<u8>>,
    /// Bytes of content.
    pub size: Option<u64>,
    /// Time of the last change.
    pub mtime: Option<Time>,
    /// Whether the entry is stored in a way of its own that we do not know (sparse files).
    pub is_sparse: bool,
}

impl Extended {
    /// Reads the records of a POSIX extended header into this; later ones win.
    ///
    /// # Errors
    /// With what is wrong, in words that follow "the archive holds".
    pub fn read(&mut self, mut records: &[u8]) -> Result<(), &'static str> {
        const BROKEN: &str = "an extended header that is broken";
        while !records.is_empty() {
            let space = records.iter().position(|byte| *byte == b' ').ok_or(BROKEN)?;
            let length: usize = std::str::from_utf8(&records[..space])
                .ok()
                .and_then(|digits| digits.parse().ok())
                .ok_or(BROKEN)?;
            if length <= space + 1 || length > records.len() || records[length - 1] != b'\n' {
                return Err(BROKEN);
            }
            let record = &records[space + 1..length - 1];
            records = &records[length..];
            let equals = record.iter().position(|byte| *byte == b'=').ok_or(BROKEN)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            let number =
                || std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok()).ok_or(BROKEN);
            match key {
                b"path" => self.name = Some(value.to_vec()),
                b"linkpath" => self.target = Some(value.to_vec()),
                b"size" => self.size = Some(number()?),
                b"mtime" => self.mtime = Some(time(value).ok_or(BROKEN)?),
                key if key.starts_with(b"GNU.sparse.") => self.is_sparse = true,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Seconds with a fraction.
fn time(value: &[u8]) -> Option<Time> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let mut nanos: u32 = 0;
    for at in 0..9 {
        let digit = fraction.as_bytes().get(at).copied().unwrap_or(b'0');
        nanos = nanos * 10 + u32::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?);
    }
    if whole.starts_with('-') && nanos > 0 {
        return Some(Time { seconds: seconds.checked_sub(1)?, nanos: 1_000_000_000 - nanos });
    }
    Some(Time { seconds, nanos })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry<'a>(name: &'a [u8], target: &'a [u8]) -> Entry<'a> {
        Entry { kind: Kind::Symlink, name, target, mode: 0o4755, uid: 1000, gid: 1000, size: 0, mtime: 7 }
    }

    fn block(bytes: &[u8], at: usize) -> &[u8; BLOCK] {
        bytes[at * BLOCK..].first_chunk().unwrap()
    }

    #[test]
    fn headers_survive() {
        let mut out = Vec::new();
        entry(b"name \xff", b"../target").write(&mut out);
        let header = Header::read(block(&out, 0)).unwrap().unwrap();
        let expected = Header {
            kind: b'2',
            name: b"name \xff".to_vec(),
            target: b"../target".to_vec(),
            mode: 0o4755,
            size: 0,
            mtime: 7,
        };
        assert_eq!(header, expected);
        assert_eq!(Header::read(&[0; BLOCK]), Ok(None));
        out[0] ^= 1;
        assert!(Header::read(block(&out, 0)).is_err());
    }

    #[test]
    fn long_names_come_before_their_header() {
        let (name, target) = (vec![b'n'; 101], vec![b't'; 512]);
        let mut out = Vec::new();
        entry(&name, &target).write(&mut out);
        let kinds: Vec<_> =
            [0, 3, 5].map(|at| Header::read(block(&out, at)).unwrap().unwrap().kind).into_iter().collect();
        assert_eq!(kinds, [b'K', b'L', b'2']);
        assert_eq!(text(&out[BLOCK..BLOCK * 3]), target);
        assert_eq!(text(&out[BLOCK * 4..BLOCK * 5]), name);
        assert_eq!(out.len(), BLOCK * 6);
    }

    #[test]
    fn numbers_of_all_sizes_survive() {
        for length in [8, 12] {
            for value in [0, 1, 0o777_7777, 0o1000_0000, u32::MAX.into(), 8 << 30, 1 << 40, -1, -86400] {
                let mut field = vec![0; length];
                number(&mut field, value);
                assert_eq!(parse(&field), Some(value), "{value} in {length} bytes");
            }
        }
        assert_eq!(parse(b"  644 \0 "), Some(0o644));
        assert_eq!(parse(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(parse(b"8       "), None);
        assert_eq!(parse(&[0xbf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), None);
    }

    #[test]
    fn extended_headers_are_read_and_checked() {
        let mut extended = Extended::default();
        extended
            .read(b"12 path=a/b\n13 path=c/de\n14 mtime=-1.5\n11 size=77\n22 GNU.sparse.major=1\n14 linkpath=\xff\n")
            .unwrap();
        let expected = Extended {
            name: Some(b"c/de".to_vec()),
            target: Some(b"\xff".to_vec()),
            size: Some(77),
            mtime: Some(Time { seconds: -2, nanos: 500_000_000 }),
            is_sparse: true,
        };
        assert_eq!(extended, expected);
        for broken in [&b"x"[..], b"0 a=b\n", b"99 a=b\n", b"6 ab\n", b"7 a=bc", b"9 size=x\n", b"2 \n"] {
            assert!(Extended::default().read(broken).is_err());
        }
    }
}
