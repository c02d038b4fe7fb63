// Package execpath adds the directories of administrators' programs to PATH, so that they can be
// found.
//
//	execpath.AddFolders()
//	path, err := exec.LookPath("iptables")
package execpath
