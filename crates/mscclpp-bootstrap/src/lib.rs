//! How the processes of a job find each other and exchange bytes over TCP
