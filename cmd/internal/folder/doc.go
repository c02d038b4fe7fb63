// Package folder checks that no other user can change vipd's files in a directory. Such changes
// would be dangerous, because vipd and vipctl run as root, trust the files there, and write files
// with fixed names.
//
// It checks the owners and the permission bits of directories and files, but ignores access control
// lists. On systems other than Unix, it checks nothing.
package folder
