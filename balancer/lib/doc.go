// Package lib is the folder of small packages that store, dataplane and cmd share, and that are
// independent of services. atomicfile replaces files, sockerr names socket errors on every system,
// and wake signals a goroutine. Package balancer imports none of them.
package lib
