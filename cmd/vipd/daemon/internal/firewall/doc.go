// Package firewall looks once a minute whether rules of others drop connections to VIPs, as "vipctl doctor" does, and keeps
// what it finds as problems of the node. It changes nothing; what vipd itself has in the kernel is the engine's to compare.
package firewall
