// Package dnskit is a DNS server for tests. It answers from records that the test sets, and makes
// the mistakes that the test requests.
package dnskit
