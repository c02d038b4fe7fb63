// Package execpath makes the tools of the host's administrator findable: it adds their folders to PATH.
//
//	execpath.AddFolders()
//	path, err := exec.LookPath("iptables")
package execpath
