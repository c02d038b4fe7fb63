// Package owners reads and writes the records of VIP owners in etcd. Ownership registers a host,
// follows all records, and writes records for the protocol in balancer/failover. Admin reads the
// records for operators, and requests moves of VIPs from owners.
//
// If etcd gets another history, because it was restored or wiped, all earlier records are invalid.
// Ownership then ends with [client.ErrAnother], and its host behaves as it would after a start.
//
// The package does not decide which host owns a VIP.
package owners
