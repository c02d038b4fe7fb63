// Package ipvsnltest is an IPVS in memory, for tests of packages that program IPVS. It refuses what
// the kernel refuses. TestIPVSHistories of package ipvsnl compares it with the kernel.
package ipvsnltest
