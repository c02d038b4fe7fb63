// Package execpath adds the directories of system administration programs, such as /usr/sbin, to
// PATH, so vipd finds programs there.
//
//	execpath.AddFolders()
//	path, err := exec.LookPath("iptables")
package execpath
