//! What scenarios are made of (images, exploits, decoys), and Scenario 2 as it stands when an episode begins.
//!
//! Source: the behaviour of CybORG 2.1 (`cage-challenge/cage-challenge-2`, Scenario2), MIT licence, DST Group.

use super::Ruleset;

/// Index of a host, in the order of the challenge's observation and actions.
pub type Host = usize;
/// A set of hosts, one bit each.
pub type Hosts = u32;
/// Index of a subnet, in the order of the first host of each.
pub type Subnet = usize;

pub const NUM_HOSTS: usize = 13;
pub const HOST_NAMES: [&str; NUM_HOSTS] = [
    "Defender",
    "Enterprise0",
    "Enterprise1",
    "Enterprise2",
    "Op_Host0",
    "Op_Host1",
    "Op_Host2",
    "Op_Server0",
    "User0",
    "User1",
    "User2",
    "User3",
    "User4",
];

pub const DEFENDER: Host = 0;
pub const ENTERPRISE0: Host = 1;
pub const ENTERPRISE1: Host = 2;
pub const ENTERPRISE2: Host = 3;
pub const OP_SERVER0: Host = 7;
/// Red starts here, with a session that a Restore leaves alone.
pub const USER0: Host = 8;
pub const USER1: Host = 9;

/// The hosts from which, and only from which, the operational subnet can be reached.
pub const GATEWAYS: Hosts = 0b1110;

pub const NUM_SUBNETS: usize = 3;
pub const SUBNET_NAMES: [&str; NUM_SUBNETS] = ["Enterprise", "Operational", "User"];
pub const ENTERPRISE: Subnet = 0;
pub const OPERATIONAL: Subnet = 1;
pub const USER: Subnet = 2;

/// Cost of a step while red holds a root or SYSTEM session on the host, in tenths.
pub const CONFIDENTIALITY_TENTHS: [i32; NUM_HOSTS] = [1, 10, 10, 10, 1, 1, 1, 10, 0, 1, 1, 1, 1];
/// Cost of a step while OTService is down, in tenths.
pub const AVAILABILITY_TENTHS: i32 = 100;
/// Cost of a Restore, in tenths.
pub const RESTORE_TENTHS: i32 = 10;

/// Red's exploits. The discriminant is also the bit of the port that the exploit needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exploit {
    EternalBlue,
    BlueKeep,
    HttpRfi,
    HttpsRfi,
    SshBruteForce,
    SqlInjection,
    HarakaRce,
    FtpDirectoryTraversal,
}

pub const EXPLOIT_NAMES: [&str; 8] = [
    "EternalBlue",
    "BlueKeep",
    "HTTPRFI",
    "HTTPSRFI",
    "SSHBruteForce",
    "SQLInjection",
    "HarakaRCE",
    "FTPDirectoryTraversal",
];

impl Exploit {
    pub const ALL: [Self; 8] = [
        Self::EternalBlue,
        Self::BlueKeep,
        Self::HttpRfi,
        Self::HttpsRfi,
        Self::SshBruteForce,
        Self::SqlInjection,
        Self::HarakaRce,
        Self::FtpDirectoryTraversal,
    ];

    /// All exploits, in red's order of preference.
    pub const BY_PREFERENCE: [Self; 8] = [
        Self::FtpDirectoryTraversal,
        Self::HarakaRce,
        Self::SqlInjection,
        Self::HttpsRfi,
        Self::HttpRfi,
        Self::EternalBlue,
        Self::BlueKeep,
        Self::SshBruteForce,
    ];

    pub const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of listening ports: the eight that exploits need, in the order of [`Exploit`], then the other four.
pub type Ports = u16;
const P139: Ports = 1;
const P3389: Ports = 1 << 1;
const P80: Ports = 1 << 2;
const P443: Ports = 1 << 3;
const P22: Ports = 1 << 4;
const P3390: Ports = 1 << 5;
const P25: Ports = 1 << 6;
const P21: Ports = 1 << 7;
const P135: Ports = 1 << 8;
const P445: Ports = 1 << 9;
const P53: Ports = 1 << 10;
const P68: Ports = 1 << 11;

/// The ports without which red does not try SQL injection.
pub const WEB_PORTS: u8 = (P80 | P443) as u8;

/// The services and processes of a host at the start of an episode.
#[derive(Debug, PartialEq)]
pub struct Image {
    pub windows: bool,
    /// Some account falls to an SSH brute force.
    pub brute_forceable: bool,
    pub ports: Ports,
    /// Listening sockets; more than `ports` where a port is listed twice.
    pub listeners: u32,
    /// Exploits that find their service here.
    pub vulnerable: u8,
    /// Exploits among them that give a root or SYSTEM session at once.
    pub gives_root: u8,
    /// Process ids, in order.
    pub pids: &'static [u16],
}

const SSH: u8 = Exploit::SshBruteForce.bit();
const WEB: u8 = Exploit::HttpRfi.bit() | Exploit::HttpsRfi.bit();
const HARAKA: u8 = Exploit::HarakaRce.bit();

const GATEWAY: Image = Image {
    windows: false,
    brute_forceable: true,
    ports: P22,
    listeners: 1,
    vulnerable: SSH,
    gives_root: 0,
    pids: &[1091],
};
const OP_SERVER: Image = Image { pids: &[1091, OT_SERVICE_PID], ..GATEWAY };
const INTERNAL: Image = Image {
    windows: true,
    brute_forceable: true,
    ports: P22 | P135 | P3389 | P445 | P139 | P80 | P443,
    listeners: 7,
    vulnerable: SSH | WEB | Exploit::BlueKeep.bit(),
    gives_root: Exploit::BlueKeep.bit(),
    pids: &[3368, 832, 4400, 4, 3404],
};
const WINDOWS_USER1: Image = Image {
    windows: true,
    brute_forceable: true,
    ports: P22 | P21,
    listeners: 2,
    vulnerable: SSH | Exploit::FtpDirectoryTraversal.bit(),
    gives_root: Exploit::FtpDirectoryTraversal.bit(),
    pids: &[3368, 3344],
};
const WINDOWS_USER2: Image = Image {
    windows: true,
    brute_forceable: true,
    ports: P445 | P139 | P135 | P3389,
    listeners: 4,
    vulnerable: Exploit::EternalBlue.bit() | Exploit::BlueKeep.bit(),
    gives_root: Exploit::EternalBlue.bit(),
    pids: &[4, 832, 4400],
};
// Its mysql listens on BlueKeep's port, which draws that exploit in vain.
const LINUX_USER1: Image = Image {
    windows: false,
    brute_forceable: true,
    ports: P80 | P3389 | P443 | P25,
    listeners: 4,
    vulnerable: WEB | HARAKA,
    gives_root: HARAKA,
    pids: &[1100, 1101, 1100, 1102],
};
const LINUX_USER2: Image = Image {
    windows: false,
    brute_forceable: true,
    ports: P22 | P80 | P3390 | P443 | P25,
    listeners: 5,
    vulnerable: SSH | WEB | HARAKA | Exploit::SqlInjection.bit(),
    gives_root: HARAKA | Exploit::SqlInjection.bit(),
    pids: &[1091, 1100, 1101, 1100, 1102],
};
const VELOCIRAPTOR: Image = Image {
    windows: false,
    brute_forceable: false,
    ports: P22 | P53 | P68,
    listeners: 4,
    vulnerable: SSH,
    gives_root: 0,
    pids: &[
        1, 389, 407, 409, 560, 790, 802, 803, 807, 824, 825, 827, 832, 844, 847, 852, 853, 863, 867, 875, 884, 1370,
        1432, 2288, 879, 656, 634,
    ],
};

/// The images of CybORG that hosts can have, by their names there.
pub static IMAGE_KINDS: [(&str, Image); 8] = image_kinds(INTERNAL, LINUX_USER1);

/// The same of CybORG++: smss, which EternalBlue attacks, has a type on Internal, and the mysql of linux_user_host1
/// listens on its own port.
pub static MENDED_IMAGE_KINDS: [(&str, Image); 8] = {
    const ETERNAL: u8 = Exploit::EternalBlue.bit();
    const SQL: u8 = Exploit::SqlInjection.bit();
    image_kinds(
        Image { vulnerable: INTERNAL.vulnerable | ETERNAL, gives_root: INTERNAL.gives_root | ETERNAL, ..INTERNAL },
        Image {
            ports: P80 | P3390 | P443 | P25,
            vulnerable: LINUX_USER1.vulnerable | SQL,
            gives_root: LINUX_USER1.gives_root | SQL,
            ..LINUX_USER1
        },
    )
};

const fn image_kinds(internal: Image, linux_user1: Image) -> [(&'static str, Image); 8] {
    [
        ("Gateway", GATEWAY),
        ("OP_Server", OP_SERVER),
        ("Internal", internal),
        ("windows_user_host1", WINDOWS_USER1),
        ("windows_user_host2", WINDOWS_USER2),
        ("linux_user_host1", linux_user1),
        ("linux_user_host2", LINUX_USER2),
        ("Velociraptor_Server", VELOCIRAPTOR),
    ]
}

/// The images of Scenario 2.
pub static IMAGES: [Image; NUM_HOSTS] = [
    VELOCIRAPTOR,
    GATEWAY,
    INTERNAL,
    INTERNAL,
    GATEWAY,
    GATEWAY,
    GATEWAY,
    OP_SERVER,
    WINDOWS_USER1,
    WINDOWS_USER1,
    WINDOWS_USER2,
    LINUX_USER1,
    LINUX_USER2,
];

pub const OT_SERVICE_PID: u16 = 1043;

/// A decoy service that blue can start.
pub struct Decoy {
    pub name: &'static str,
    /// Port on which nothing may listen yet.
    pub checks: Ports,
    opens: Ports,
    /// As far as it opens the port of this exploit.
    pub fools: Exploit,
    /// The only operating system it runs on, if there is one: Windows (`Some(true)`) or Linux (`Some(false)`).
    pub windows: Option<bool>,
}

impl Decoy {
    /// The ports that it opens; in CybORG++ every decoy opens the one that it checks.
    pub const fn opens(&self, ruleset: Ruleset) -> Ports {
        if matches!(ruleset, Ruleset::PlusPlus) { self.checks } else { self.opens }
    }
}

/// Decoys in the order of blue's actions.
pub static DECOYS: [Decoy; 8] = [
    Decoy { name: "DecoyApache", checks: P80, opens: P80, fools: Exploit::HttpRfi, windows: None },
    Decoy {
        name: "DecoyFemitter",
        checks: P21,
        opens: P21,
        fools: Exploit::FtpDirectoryTraversal,
        windows: Some(true),
    },
    Decoy { name: "DecoyHarakaSMPT", checks: P25, opens: P25, fools: Exploit::HarakaRce, windows: Some(false) },
    Decoy { name: "DecoySmss", checks: P139, opens: P139, fools: Exploit::EternalBlue, windows: Some(true) },
    Decoy { name: "DecoySSHD", checks: P22, opens: P22, fools: Exploit::SshBruteForce, windows: None },
    Decoy { name: "DecoySvchost", checks: P3389, opens: P3389, fools: Exploit::BlueKeep, windows: Some(true) },
    Decoy { name: "DecoyTomcat", checks: P443, opens: P443, fools: Exploit::HttpsRfi, windows: None },
    // It checks one port and opens another, so it can be started again and again, but in CybORG++.
    Decoy { name: "DecoyVsftpd", checks: P21, opens: P80, fools: Exploit::HttpRfi, windows: Some(false) },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exploits_that_give_root_have_a_service_and_a_port() {
        for (_, image) in IMAGE_KINDS.iter().chain(&MENDED_IMAGE_KINDS) {
            assert_eq!(image.gives_root & !image.vulnerable, 0);
            assert_eq!(image.vulnerable & !(image.ports as u8), 0);
        }
    }
}
