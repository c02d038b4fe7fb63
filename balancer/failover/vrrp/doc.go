// Package vrrp decides which of a few hosts holds a group of VIPs by the Virtual Router Redundancy Protocol, versions 3 (RFC 9568) and 2.
//
// It has no I/O and no clock. An [Advert] is the message of the protocol; keepalived and hardware routers send the same.
package vrrp
