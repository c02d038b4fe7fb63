// Package tomlfile is the source of services that are defined in TOML. The definitions are in the
// daemon's configuration file, and in the file or folder that its [store].path names.
//
//	/etc/vipd/vipd.toml       [defaults], [store] path = "services.d", [services.*], and sections of the daemon
//	/etc/vipd/services.d/     a.toml, b.toml, ...: [services.*] only
//
//	notification, poll, Reload  ->  look: which files differ?  ->  parse, decode  ->  merge what changed  ->  publish
//
// Notifications only determine which files to check. A file is read again if its size, times or
// inode have changed since the last check. It is parsed again if its text has changed. Only
// services that differ are replaced in the snapshot.
//
// A mistake never removes a valid definition:
//   - If a file can't be read or is not valid TOML, its services stay in their last good state.
//   - If a service has an error, it stays in its last good state, and other services change.
//   - If [defaults] have an error, the last good defaults apply. They also apply, like the last
//     good [store].path, if the setting is missing and the file has an error.
//   - If an error may hide a definition (an unknown table, a wrong type, an invalid name, a file
//     that can't be parsed), tables that no file defines stay until the error is fixed or a Reload
//     has Prune set.
//   - If the main file is missing, or the file or folder that [store].path names, all definitions
//     from there stay.
//   - If two files define the same service, the file that defined it first keeps it.
//
// The same applies after a restart, because the last good state of services, addresses, defaults
// and other settings is saved in Options.StateDir.
//
// Only regular files of at most 64 MiB are read. Anything else, including the target of a link,
// counts as a file that can't be read.
//
// If a file is removed from the folder, its services are removed. If [store].path becomes empty,
// the services of the former place are removed.
//
// A file that is being written is read when its writer has closed it, or has paused for two
// seconds, because a partial file may be valid. On Linux, the kernel reports whether a file has a
// writer, if vipd is root or owns the file. If tables, keys, endpoints or ports have disappeared,
// the file must be unchanged for two seconds, unless another file has replaced it. This protects a
// file that a script writes line by line. The same applies to a file that has become empty, because
// many programs truncate a file before they write it. Reload waits only for a writer.
//
// A main file that has become empty is never accepted automatically. It is a problem, and its
// previous content stays in use until a Reload with AllowEmpty.
//
// The other sections of the file are published with each snapshot, as Settings, so the file is read
// only once.
//
// In the folder, files whose names end in .toml and do not start with a dot are read. Subfolders
// are ignored. Symbolic links are followed: links on the way to the main file and to the folder,
// and links in the folder. A change to any of these links is noticed immediately. Only polling
// detects a change further up the path, such as a renamed grandparent directory.
//
// [Document] is a parsed file, which also serves the readers of other sections. It provides the
// content as a tree, and the line of each part.
package tomlfile
