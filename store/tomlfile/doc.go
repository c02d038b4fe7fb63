// Package tomlfile is the source of services that are written in TOML: in the daemon's own
// configuration file, and in the file or folder that its [store].path names.
//
//	/etc/vipd/vipd.toml       [defaults], [store] path = "services.d", [services.*], and sections of the daemon
//	/etc/vipd/services.d/     a.toml, b.toml, ...: [services.*] only
//
//	notification, poll, Reload  ->  look: which files differ?  ->  parse, decode  ->  merge what changed  ->  publish
//
// A notification only says where to look. A file is read again when its size, times or inode differ
// from the last look, and parsed again when its text does. Then only the services that differ are
// exchanged in the snapshot.
//
// What is wrong never takes away what was right:
//   - a file that can't be read or is no valid TOML leaves its services as they were;
//   - a service with an error stays as it was, those beside it change;
//   - [defaults] with an error leave the defaults as they were, and so do [defaults] and [store].path that are missing in a file with one;
//   - while an error may hide a definition (an unknown table, a wrong shape, a bad name, a file that can't be parsed), tables that no file
//     defines any more stay, until the error is fixed or a Reload has Prune;
//   - while the main file, or the file or folder that [store].path names, is missing, everything from there stays;
//   - of two files that define the same service, the one that had it first keeps it.
//
// So it is after a restart: the last good state of services, settings of addresses, defaults and
// settings is kept in Options.StateDir.
//
// Only regular files of 64 MiB at most are read: anything else, at the end of a link too, is a file
// that can't be read.
//
// A file that is removed from the folder takes its services with it, and so does an empty
// [store].path.
//
// A file that is being written is read when its writer has closed it, or has written nothing for
// two seconds: what half a file says may be valid. On Linux, the kernel says whether a file has a
// writer, if vipd is root or owns the file. A file from which tables, keys, endpoints or ports
// disappear waits for two seconds without a change, unless another file has taken its place: a
// script may append to it line by line. So does a file that is suddenly empty: many programs empty
// a file before they write it. Reload waits for a writer, and for nothing else.
//
// A main file that says nothing any more is never believed by itself: it is a problem, and what it
// said before goes on, until Reload with AllowEmpty.
//
// The file's other sections are published with each snapshot, as Settings: the file is read once.
//
// In the folder, names that end in .toml and don't begin with a dot count; folders in it do not.
// Symbolic links are followed, those on the way to the main file and the folder as well as files in
// it, and swapping any of them is noticed. A change further up (a parent's parent is renamed) is
// noticed by the poll.
//
// Document is the parser underneath, for other sections of the same files: a tree and the lines of
// its parts.
package tomlfile
