// Package handover passes sockets and their state from one process to its successor.
//
//	old process -- Send --> Queue (a Unix socket) -- Receive --> new process
//
// The kernel keeps sockets in transit open, so the two processes need not run at the same time. For
// example, systemd's file descriptor store can hold the receiving end. The dataplane that sends an
// [Item] defines its meaning. A process that receives an Item owns its descriptors.
package handover
