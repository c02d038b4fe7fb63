// Package execpath adds the directories of administrators' programs to PATH, so vipd finds them.
//
//	execpath.AddFolders()
//	path, err := exec.LookPath("iptables")
package execpath
