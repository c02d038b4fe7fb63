// Package hostwatch checks once a minute how the rest of the host affects vipd. Like "vipctl
// doctor", it checks whether other programs' rules drop connections to VIPs. It also checks whether
// vipd's own files exist, and whether its certificate is about to expire. The findings become
// problems of the node. The engine compares vipd's own rules in the kernel.
package hostwatch
