// Package resolve finds the addresses of endpoints that services define by name: hosts (A and AAAA
// records), SRV records, and programs that print addresses.
//
//	balancer.LookupsOf -> Runner.Set -> a goroutine for each distinct Lookup
//	                                      |  Client.Answer: hosts file, DNS servers, program
//	                                      v
//	balancer.Inputs.Resolved <- Runner.Answers
//
// A failed or empty answer keeps the last good one. Client asks as the C library's resolver does,
// with the servers, search domains and options of resolv.conf. It has no cache: a lookup is
// repeated when its records expire.
//
// Limits: DNS over UDP and TCP only, without DNSSEC; the options rotate, trust-ad and use-vc, and
// nsswitch.conf, have no effect.
package resolve
