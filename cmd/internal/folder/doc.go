// Package folder checks that nobody else can change what vipd keeps in a folder: as root, vipd and vipctl believe what the ledgers there
// say, and write files by fixed names.
//
// It checks owners and modes, not access control lists, and nothing on systems without these.
package folder
