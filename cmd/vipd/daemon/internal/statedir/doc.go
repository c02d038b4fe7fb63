// Package statedir keeps in state_dir what must outlive a restart, a JSON file for each part of the daemon: what can't be kept
// is a problem that is shown, and never stops traffic.
//
// A file is replaced as a whole, so that a crash leaves the old one or the new one, and has a version, so that no program reads
// what it would misread. What is in the files is the business of those who write them.
package statedir
