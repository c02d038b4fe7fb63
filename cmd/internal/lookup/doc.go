// Package lookup finds what users name: services, and the endpoints that a request to drain or weigh is about. vipd looks
// among what it serves, vipctl among what is in etcd. What can't be found is an error that names what there is.
package lookup
