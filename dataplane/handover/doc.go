// Package handover carries what a process serves to the process that takes its place: sockets, and what is known of them.
//
//	old process -- Send --> Queue (a Unix socket) -- Receive --> new process
//
// The kernel keeps sockets that are on their way open, so the two processes need not live at the same time: systemd's file
// descriptor store can hold the receiving end between them. What an Item means is up to the dataplane that sends it. A process
// that receives an Item owns its descriptors.
package handover
