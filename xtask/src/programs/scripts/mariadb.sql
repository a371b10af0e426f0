CREATE DATABASE shop CHARACTER SET utf8mb4;
USE shop;
CREATE TABLE item(id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(64), shelf INT, note TEXT,
  KEY(name), KEY(shelf)) ENGINE=InnoDB;
CREATE TABLE account(id INT PRIMARY KEY, balance BIGINT) ENGINE=InnoDB;
CREATE TABLE history(id INT AUTO_INCREMENT PRIMARY KEY, payer INT, payee INT, amount INT,
  KEY(payer), KEY(payee)) ENGINE=InnoDB;
DELIMITER //
CREATE PROCEDURE transfer()
BEGIN
  DECLARE a INT DEFAULT floor(rand() * 100);
  DECLARE b INT DEFAULT 100 + floor(rand() * 100);
  DECLARE sum INT DEFAULT 1 + floor(rand() * 50);
  START TRANSACTION;
  UPDATE account SET balance = balance - sum WHERE id = a;
  UPDATE account SET balance = balance + sum WHERE id = b;
  INSERT INTO history(payer, payee, amount) VALUES(a, b, sum);
  COMMIT;
END //
DELIMITER ;
