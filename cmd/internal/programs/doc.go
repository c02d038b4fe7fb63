// Package programs makes the tools of the host's administrator findable: it adds their folders to PATH.
//
//	programs.AddFolders()
//	path, err := exec.LookPath("iptables")
package programs
