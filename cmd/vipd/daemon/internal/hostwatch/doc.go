// Package hostwatch looks once a minute for what the rest of the host does to vipd: whether rules of others drop connections to
// VIPs, as "vipctl doctor" does, whether vipd's own files are there, and whether its certificate lasts. It keeps what it finds as
// problems of the node. What vipd has in the kernel is the engine's to compare.
package hostwatch
