// Package folder checks that no other user can change vipd's files in a directory. vipd and vipctl
// run as root, trust the ledgers there, and write files with fixed names.
//
// It checks owners and modes, but not access control lists. It checks nothing on systems without
// owners and modes.
package folder
